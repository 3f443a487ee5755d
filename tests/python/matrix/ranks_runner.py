"""The matrix of several ranks: a kill of a row, and what was different on any rank. See `trials.py`."""

from __future__ import annotations

import pathlib
import random
import signal
from typing import Any

from .ranks import RANK_ROWS, RankRow
from .trials import Journal, Outcome, Trials, differences, read_journal


class RankMatrix(Trials):
    """Trials of several processes each."""

    def __init__(self, folder: pathlib.Path) -> None:
        super().__init__(folder, RANK_ROWS, "matrix.ranks_zygote", GLOO_SOCKET_IFNAME="lo")

    def trial(self, row: RankRow, options: dict[str, Any]) -> list[Journal]:
        """What each rank wrote."""
        path, statuses = self.run(row, {"world": row.ranks, **options})
        return [read_journal(pathlib.Path(f"{path}.{rank}"), status) for rank, status in enumerate(statuses)]

    def kill(self, row: RankRow, kill: int, choose: random.Random, rule: str | None) -> Outcome:
        undisturbed = self.undisturbed(row)
        inside, victim = choose.random() < 0.5, choose.choice([None, *range(row.ranks)])
        job = {"job": self.job(), "rule": rule, "kill": kill, "inside": inside, "victim": victim}
        killed = self.trial(row, {"mode": "killed", **job})
        who = "all ranks" if victim is None else f"rank {victim}"
        what = f"{who} killed {'inside the capture of' if inside else 'after the update of'} step {kill}"
        if all(journal.status != -signal.SIGKILL for journal in killed):
            crashed = sentences(killed, "crashed")
            return Outcome(what, [crashed] if crashed else [], sentences(killed, "refused"), crashed)
        resumed = self.trial(row, {"mode": "resumed", **job})
        problems = judge(undisturbed, killed, resumed, row)
        warned = killed[0].sentences("warned") if killed[0].all("told") and not killed[0].all("captured") else ""
        return Outcome(what, problems, sentences(resumed, "refused") or warned, sentences(resumed, "crashed"))


def sentences(journals: list[Journal], word: str) -> str:
    """The lines of all ranks that begin with `word`."""
    return "; ".join(filter(None, (journal.sentences(word) for journal in journals)))


def judge(undisturbed: list[Journal], killed: list[Journal], resumed: list[Journal], row: RankRow) -> list[str]:
    """What differs on any rank, in words. Empty: bit-exact."""
    captured = max([int(words[0]) for journal in killed for words in journal.all("captured")], default=0)
    restored = {int(words[0]) for journal in resumed for words in journal.all("restored")}
    problems = []
    if len(restored) != 1 or not captured or min(restored) < captured:
        problems.append(f"captured was step {captured}, restored were {sorted(restored)}")
    for rank, (whole, first, second) in enumerate(zip(undisturbed, killed, resumed)):
        told = [" ".join(words) for words in [*first.all("told"), *second.all("told")] if words[0] not in row.dropped]
        found = [f"was told: {sentence}" for sentence in told]
        if row.warned not in first.sentences("warned"):
            found.append(f"no warning has {row.warned!r}: {first.sentences('warned')}")
        for name, journal in (("undisturbed", whole), ("resumed", second)):
            ended = journal.sentences("refused") or journal.sentences("crashed")
            if journal.status or ended:
                found.append(f"the {name} run ended with {journal.status}: {ended} {journal.output}")
        expected = whole.values()
        found += differences("killed", expected, first.values()) + differences("resumed", expected, second.values())
        found += [f"missing: {key}" for key in expected if key not in {**first.values(), **second.values()}]
        problems += [f"rank {rank}: {problem}" for problem in found]
    return problems
