"""The matrix: loops that people write, killed at a random step, resumed, compared bit for bit with undisturbed runs.

A run of CI kills each row once, and switches each rule off once, in a row that is drawn. By night each row is killed
twenty times, and every row runs without every rule it stands for. Such a row is killed at other steps until one shows
that the rule is missing. What is drawn depends on --seed.
"""

import os
import random

import pytest
from conftest import ROOT, require_build

from matrix import table
from matrix.all_rows import ROWS
from matrix.ranks_all import RANK_ROWS
from matrix.rules import RULES
from matrix.runner import Matrix
from matrix.trials import judge_row

README = ROOT / "client" / "python" / "README.md"
PAIRS = [(name, rule) for name, row in ROWS.items() for rule in row.rules]
PAIRS_AND_ROWS = [*((name, None) for name in ROWS), *PAIRS]


def pytest_generate_tests(metafunc):
    if "rule" not in metafunc.fixturenames:
        return
    choose = random.Random(metafunc.config.getoption("--seed"))
    drawn = [choose.choice([pair for pair in PAIRS if pair[1] == rule]) for rule in RULES]
    metafunc.parametrize("row, rule", PAIRS if metafunc.config.getoption("--all-rules") else drawn)


def seeds(config, row, rule):
    """One for each kill; one for each row without a rule."""
    choose = random.Random(f"{config.getoption('--seed')} {row} {rule}")
    return [choose.getrandbits(32) for _ in range(config.getoption("--kills") if rule is None else 1)]


def start(matrix, config, row, rule):
    """A function that waits for the outcomes of the row, with `rule` switched off if it is not None."""
    drawn = seeds(config, row, rule)
    if rule is not None:
        return matrix.without(row, rule, drawn[0]).result
    futures = [matrix.start(row, seed) for seed in drawn]
    return lambda: [future.result() for future in futures]


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """A function that gives the outcomes of a row: all selected ones run, two at a time, while tests wait in order."""
    require_build()
    matrix = Matrix(tmp_path_factory.mktemp("matrix"))
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    pairs = {(item.callspec.params["row"], item.callspec.params.get("rule")) for item in items}
    waits = {
        pair: start(matrix, request.config, *pair)
        for pair in PAIRS_AND_ROWS
        if pair in pairs and not skipped(pair[0])
    }
    yield lambda row, rule=None: waits[row, rule]()
    matrix.end()


def skipped(row):
    return ROWS[row].skip() if ROWS[row].skip else None


def needs(row):
    if skipped(row):
        pytest.skip(skipped(row))


@pytest.mark.parametrize("row", ROWS)
def test_row(outcomes, row):
    needs(row)
    judge_row(ROWS[row], outcomes(row))


def test_no_row_passes_without_its_rule(outcomes, row, rule):
    needs(row)
    found = outcomes(row, rule)
    assert found[-1].caught(), f"{row} passes without '{rule}', or broke: {found}"


def test_each_rule_has_a_row():
    assert {rule for _, rule in PAIRS} == set(RULES)


def test_the_table_of_the_readme_is_this_one():
    text = README.read_text()
    fresh = table.inserted(text, table.markdown([*ROWS.values(), *RANK_ROWS.values()]))
    if os.environ.get("CKPTD_UPDATE"):
        README.write_text(fresh)
    assert README.read_text() == fresh, "run this test with CKPTD_UPDATE=1"
