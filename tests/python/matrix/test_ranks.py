"""The matrix with several ranks: DDP, FSDP1, FSDP2 and other DTensors; see `test_matrix.py`."""

import random

import pytest
from conftest import require_build

from matrix.ranks_all import RANK_ROWS
from matrix.ranks_runner import RankMatrix
from matrix.test_matrix import start
from matrix.trials import judge_row

PAIRS = [(name, rule) for name, row in RANK_ROWS.items() for rule in row.rules]
RULES = sorted({rule for _, rule in PAIRS})


def pytest_generate_tests(metafunc):
    if "rule" not in metafunc.fixturenames:
        return
    choose = random.Random(metafunc.config.getoption("--seed"))
    drawn = [choose.choice([pair for pair in PAIRS if pair[1] == rule]) for rule in RULES]
    metafunc.parametrize("row, rule", PAIRS if metafunc.config.getoption("--all-rules") else drawn)


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """A function that gives the outcomes of a row: all selected ones run, two at a time, while tests wait in order."""
    require_build()
    matrix = RankMatrix(tmp_path_factory.mktemp("ranks"))
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    pairs = dict.fromkeys((item.callspec.params["row"], item.callspec.params.get("rule")) for item in items)
    waits = {pair: start(matrix, request.config, *pair) for pair in pairs}
    yield lambda row, rule=None: waits[row, rule]()
    matrix.end()


@pytest.mark.parametrize("row", RANK_ROWS)
def test_row(outcomes, row):
    judge_row(RANK_ROWS[row], outcomes(row))


def test_no_row_passes_without_its_rule(outcomes, row, rule):
    found = outcomes(row, rule)
    assert found[-1].caught(), f"{row} passes without '{rule}', or broke: {found}"
