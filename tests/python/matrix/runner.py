"""The matrix of one process: a kill of a row, and what was different. See `trials.py`."""

from __future__ import annotations

import pathlib
import random
import signal
from typing import Any

from .all_rows import ROWS
from .rows import Row
from .trials import Journal, Outcome, Trials, differences, read_journal


class Matrix(Trials):
    """Trials of one process each."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder, ROWS, "matrix.zygote")

    def trial(self, row: Row, options: dict[str, Any]) -> Journal:
        return read_journal(*self.run(row, options))

    def kill(self, row: Row, kill: int, choose: random.Random, rule: str | None) -> Outcome:
        undisturbed = self.undisturbed(row)
        inside = choose.random() < 0.5
        job = {"job": self.job(), "rule": rule, "kill": kill, "inside": inside}
        killed = self.trial(row, {"mode": "killed", **job})
        what = f"killed {'inside the capture of' if inside else 'after the update of'} step {kill}"
        if killed.all("refused"):
            return Outcome(what, [], killed.sentences("refused"))
        resumed = self.trial(row, {"mode": "resumed", **job})
        problems = judge(undisturbed, killed, resumed, row)
        warned = killed.sentences("warned") if killed.all("told") and not killed.all("captured") else ""
        crashed = killed.sentences("crashed") or resumed.sentences("crashed")
        return Outcome(what, problems, resumed.sentences("refused") or warned, crashed)


def judge(undisturbed: Journal, killed: Journal, resumed: Journal, row: Row) -> list[str]:
    """What differs, in words. Empty: bit-exact."""
    problems = []
    runs = (("undisturbed", undisturbed, 0), ("killed", killed, -signal.SIGKILL), ("resumed", resumed, 0))
    for name, journal, status in runs:
        ended = journal.sentences("refused") or journal.sentences("crashed")
        if journal.status != status or (status == 0 and ended):
            problems.append(f"the {name} run ended with {journal.status}: {ended} {journal.output}")
        told = [words for words in journal.all("told") if words[0] not in row.dropped]
        problems += [f"the {name} run was told: {' '.join(words)}" for words in told]
    captured = [int(words[0]) for words in killed.all("captured")]
    restored = [int(words[0]) for words in resumed.all("restored")]
    if not captured or restored[:1] < captured[-1:]:
        problems.append(f"captured were steps {captured}, restored was {restored}")
    if row.warned not in killed.sentences("warned"):
        problems.append(f"no warning has {row.warned!r}: {killed.sentences('warned')}")
    expected = undisturbed.values()
    for name, journal in (("killed", killed), ("resumed", resumed)):
        problems += differences(name, expected, journal.values())
    problems += [f"missing: {key}" for key in expected if key not in {**killed.values(), **resumed.values()}]
    return problems
