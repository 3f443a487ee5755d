"""What both matrices share on pytest's side: one agent, warm processes, kills of rows, two at a time."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from conftest import Agent

from .rows import Row

WORKERS = 2
KILLS_OF_AN_AGENT = 40  # each leaves a job in memory
FOLDER = pathlib.Path(__file__).parent


class Zygote:
    """A warm process; `run` is one trial at a time."""

    def __init__(self, module: str, environment: dict[str, str], log: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def run(self, request: dict[str, Any]) -> Any:
        """What it answers: wait statuses."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the warm process ended; see zygote.log"
        return json.loads(answer)

    def end(self) -> None:
        """Waits for it."""
        self._process.stdin.close()
        self._process.wait(30)


@dataclass
class Journal:
    """What one trial wrote."""

    status: int
    lines: list[list[str]] = field(default_factory=list)
    output: str = ""

    def all(self, word: str) -> list[list[str]]:
        """The rest of each line that begins with `word`."""
        return [line[1:] for line in self.lines if line[0] == word]

    def sentences(self, word: str) -> str:
        """The lines that begin with `word`, as text."""
        return "; ".join(" ".join(words) for words in self.all(word))

    def values(self) -> dict[str, str]:
        """What is compared: batches and losses by step, state at the end by name."""
        return {" ".join(line[:2]): line[2] for line in self.lines if line[0] in ("batch", "loss", "end")}


@dataclass
class Outcome:
    """Of one kill. problems: empty when the run was bit-exact. refused: the sentence, when ckptd took no save.

    crashed: what broke the loop, though ckptd refused nothing; it is among the problems too.
    """

    what: str
    problems: list[str]
    refused: str = ""
    crashed: str = ""

    def caught(self) -> bool:
        """Whether it shows that a rule is missing. A loop that broke shows nothing."""
        return bool(self.problems or self.refused) and not self.crashed


def judge_row(row: Row, outcomes: list[Outcome]) -> None:
    """AssertionError unless each is what the row says: bit-exact, or refused with its sentence."""
    for outcome in outcomes:
        if row.refused:
            assert outcome.refused and row.refused in outcome.refused, outcome
        else:
            assert not outcome.refused and not outcome.problems, outcome


class Trials:
    """Kills rows. A subclass says what a trial of its rows is, and what is compared."""

    def __init__(self, folder: pathlib.Path, rows: Mapping[str, Row], module: str, **environment: str) -> None:
        """module: of the warm processes, which get `environment` too."""
        self.folder = folder
        self.agent = Agent(folder)
        # Nothing is flushed: restores from storage have their own tests. Slots enough that no save is dropped.
        text = self.agent.config.read_text().replace("[region]", "[region]\nslots = 4")
        self.agent.config.write_text(text + "[durability]\nflush_every = 1000\n")
        self.agent.start()
        self._rows = rows
        self._log = open(folder / "zygote.log", "w")
        own = self.agent.environment(LD_PRELOAD=str(late_copy(folder)), **FOR_TORCH, **environment)
        self._zygotes = [Zygote(module, own, self._log) for _ in range(WORKERS)]
        self._idle: SimpleQueue[Zygote] = SimpleQueue()
        for zygote in self._zygotes:
            self._idle.put(zygote)
        self._pool = ThreadPoolExecutor(WORKERS)
        self._undisturbed: dict[str, Any] = {}
        self._locks = {name: threading.Lock() for name in rows}
        self._numbers = itertools.count(1)
        self._turn = threading.Condition()
        self._running = self._kills = 0  # kills that go on, and all of this agent

    def start(self, name: str, seed: int) -> Future[Outcome]:
        """One kill of row `name`, at a step that `seed` draws."""
        row, choose = self._rows[name], random.Random(seed)
        return self._pool.submit(self._kill, row, choose.randint(row.first_kill, row.steps), choose, None)

    def without(self, name: str, rule: str, seed: int) -> Future[list[Outcome]]:
        """Kills of row `name` with `rule` switched off, at each step until one shows that it is missing.

        At some steps nothing can: where a cyclic schedule begins anew, a learning rate that was lost is the first one.
        """
        return self._pool.submit(self._until_caught, self._rows[name], rule, random.Random(seed))

    def _until_caught(self, row: Row, rule: str, choose: random.Random) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for kill in choose.sample(range(row.first_kill, row.steps + 1), row.steps + 1 - row.first_kill):
            outcomes.append(self._kill(row, kill, choose, rule))
            if outcomes[-1].caught():
                break
        return outcomes

    def _kill(self, row: Row, kill: int, choose: random.Random, rule: str | None) -> Outcome:
        with self._turn:
            while self._kills >= KILLS_OF_AN_AGENT:
                if self._running:
                    self._turn.wait()
                else:
                    self._empty_agent()
            self._kills += 1
            self._running += 1
        try:
            return self.kill(row, kill, choose, rule)
        finally:
            with self._turn:
                self._running -= 1
                self._turn.notify_all()

    def _empty_agent(self) -> None:
        """At the same socket: jobs that died stay in an agent's memory, and thousands would fill it."""
        self.agent.kill()
        self.agent.lose_region()
        shutil.rmtree(self.agent.storage)
        self.agent.storage.mkdir()
        self.agent.start()
        self._kills = 0

    def undisturbed(self, row: Row) -> Any:
        """Run once for each row, before anything of it is killed: what it compiles is then found by the others."""
        with self._locks[row.name]:
            if row.name not in self._undisturbed:
                self._undisturbed[row.name] = self.trial(row, {"mode": "undisturbed"})
            return self._undisturbed[row.name]

    def kill(self, row: Row, kill: int, choose: random.Random, rule: str | None) -> Outcome:
        """Runs the row to step `kill`, kills it there, resumes it and compares."""
        raise NotImplementedError

    def trial(self, row: Row, options: dict[str, Any]) -> Any:
        """One run of the row: its journal, or one of each rank."""
        raise NotImplementedError

    def job(self) -> str:
        """A name that no other kill has."""
        return f"row-{next(self._numbers)}"

    def run(self, row: Row, options: dict[str, Any]) -> tuple[pathlib.Path, Any]:
        """Path of the journal, and the answer of the warm process."""
        path = self.folder / f"journal-{next(self._numbers)}"
        request = {"row": row.name, "journal": str(path), "rule": None, "environment": {}, **options}
        zygote = self._idle.get()
        try:
            return path, zygote.run(request)
        finally:
            self._idle.put(zygote)

    def end(self) -> None:
        """Waits for everything."""
        self._pool.shutdown()
        for zygote in self._zygotes:
            zygote.end()
        self._log.close()
        self.agent.remove()


def read_journal(path: pathlib.Path, status: int) -> Journal:
    """What a process wrote at `path` until it ended with wait status `status`; it may not have come that far."""
    printed = pathlib.Path(f"{path}.out")
    lines = [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []
    output = printed.read_text(errors="replace")[-2000:] if printed.exists() else ""
    return Journal(os.waitstatus_to_exitcode(status), lines, output)


FOR_TORCH = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_CACHE_DIR": os.environ.get("CKPTD_CACHE", os.path.expanduser("~/.cache/ckptd")) + "/inductor",
}


def late_copy(folder: pathlib.Path) -> pathlib.Path:
    """The library that makes the copy thread late, compiled."""
    library = folder / "late_copy.so"
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, FOLDER / "late_copy.c", "-ldl"], check=True)
    return library


def differences(name: str, expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """What the journal of the run `name` has otherwise than it should."""
    wrong = [key for key, value in found.items() if expected.get(key) != value]
    more = " and more" if len(wrong) > 6 else ""
    return [f"the {name} run differs in {', '.join(wrong[:6])}{more}"] if wrong else []
