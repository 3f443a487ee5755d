"""The pytest side of rows of several ranks; see `runner.py`."""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

from conftest import Agent

from .ranks import RANK_ROWS, RankRow
from .runner import FOR_TORCH, Journal, Matrix, Outcome, differences, late_copy

WORKERS = 2


class RankMatrix:
    """Runs trials of all ranks, two at a time, against one agent."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.agent = Agent(folder)
        text = self.agent.config.read_text().replace("[region]", "[region]\nslots = 4")
        self.agent.config.write_text(text + "[durability]\nflush_every = 1000\n")
        self.agent.start()
        self._log = open(folder / "zygote.log", "w")
        preload = str(late_copy(folder))
        environment = self.agent.environment(LD_PRELOAD=preload, GLOO_SOCKET_IFNAME="lo", **FOR_TORCH)
        command = [sys.executable, "-m", "matrix.ranks_zygote"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._log, "text": True}
        self._zygotes = [subprocess.Popen(command, env=environment, **pipes) for _ in range(WORKERS)]
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for zygote in self._zygotes:
            self._idle.put(zygote)
        self._pool = ThreadPoolExecutor(WORKERS)
        self._undisturbed: dict[str, list[Journal]] = {}
        self._locks = {name: threading.Lock() for name in RANK_ROWS}
        self._count = 0

    def start(self, name: str, seed: int) -> Future[Outcome]:
        """One kill of row `name`, at a step that `seed` draws."""
        row, choose = RANK_ROWS[name], random.Random(seed)
        return self._pool.submit(self._kill_and_compare, row, choose.randint(row.first_kill, row.steps), choose)

    def without(self, name: str, rule: str, seed: int) -> Future[list[Outcome]]:
        """Kills of row `name` with `rule` switched off, at each step until one shows that it is missing."""
        return self._pool.submit(self._until_caught, RANK_ROWS[name], rule, random.Random(seed))

    _until_caught = Matrix._until_caught

    def _undisturbed_of(self, row: RankRow) -> list[Journal]:
        with self._locks[row.name]:
            if row.name not in self._undisturbed:
                self._undisturbed[row.name] = self._trial(row, {"mode": "undisturbed"})
            return self._undisturbed[row.name]

    def _trial(self, row: RankRow, options: dict[str, Any]) -> list[Journal]:
        """What each rank wrote."""
        zygote = self._idle.get()
        self._count += 1
        path = self.folder / f"journal-{self._count}"
        request = {"row": row.name, "world": row.ranks, "journal": str(path), "store": f"{path}.store", "rule": None}
        try:
            zygote.stdin.write(json.dumps({**request, **options}) + "\n")
            zygote.stdin.flush()
            answer = zygote.stdout.readline()
            assert answer, "the warm process ended; see zygote.log"
        finally:
            self._idle.put(zygote)
        statuses = [os.waitstatus_to_exitcode(status) for status in json.loads(answer)]
        return [self._journal(path, rank, status) for rank, status in enumerate(statuses)]

    def _journal(self, path: pathlib.Path, rank: int, status: int) -> Journal:
        written, printed = pathlib.Path(f"{path}.{rank}"), pathlib.Path(f"{path}.{rank}.out")
        lines = [line.split(" ") for line in written.read_text().splitlines()] if written.exists() else []
        return Journal(status, lines, printed.read_text(errors="replace")[-2000:] if printed.exists() else "")

    def _kill_and_compare(self, row: RankRow, kill: int, choose: random.Random, rule: str | None = None) -> Outcome:
        undisturbed = self._undisturbed_of(row)
        inside, victim = choose.random() < 0.5, choose.choice([None, *range(row.ranks)])
        self._count += 1
        job = {"job": f"row-{self._count}", "rule": rule, "kill": kill, "inside": inside, "victim": victim}
        killed = self._trial(row, {"mode": "killed", **job})
        who = "all ranks" if victim is None else f"rank {victim}"
        what = f"{who} killed {'inside the capture of' if inside else 'after the update of'} step {kill}"
        if all(journal.status != -signal.SIGKILL for journal in killed):
            crashed = sentences(killed, "crashed")
            return Outcome(what, [crashed] if crashed else [], sentences(killed, "refused"), crashed)
        resumed = self._trial(row, {"mode": "resumed", **job})
        problems = judge(undisturbed, killed, resumed, row)
        warned = killed[0].sentences("warned") if killed[0].all("told") and not killed[0].all("captured") else ""
        return Outcome(what, problems, sentences(resumed, "refused") or warned, sentences(resumed, "crashed"))

    def end(self) -> None:
        """Waits for everything."""
        self._pool.shutdown()
        for zygote in self._zygotes:
            zygote.stdin.close()
            zygote.wait(30)
        self._log.close()
        self.agent.remove()


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
