"""The pytest side: warm processes, trials of a row, and what was different."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from conftest import Agent

from .all_rows import ROWS
from .rows import Row

WORKERS = 2
FOLDER = pathlib.Path(__file__).parent


class Zygote:
    """A warm process; `run` is one trial at a time."""

    def __init__(self, environment: dict[str, str], log: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "matrix.zygote"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def run(self, request: dict[str, Any]) -> int:
        """The child's exit status, negative for a signal."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the warm process ended; see zygote.log"
        return os.waitstatus_to_exitcode(int(answer))

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


class Matrix:
    """Runs trials, two at a time, against one agent."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.agent = Agent(folder)
        # Nothing is flushed: restores from storage have their own tests. Slots enough that no save is dropped.
        text = self.agent.config.read_text().replace("[region]", "[region]\nslots = 4")
        self.agent.config.write_text(text + "[durability]\nflush_every = 1000\n")
        self.agent.start()
        self._log = open(folder / "zygote.log", "w")
        environment = self.agent.environment(LD_PRELOAD=str(late_copy(folder)), **FOR_TORCH)
        self._idle: SimpleQueue[Zygote] = SimpleQueue()
        self._zygotes = [Zygote(environment, self._log) for _ in range(WORKERS)]
        for zygote in self._zygotes:
            self._idle.put(zygote)
        self._pool = ThreadPoolExecutor(WORKERS)
        self._undisturbed: dict[str, Journal] = {}
        self._locks = {name: threading.Lock() for name in ROWS}
        self._count = 0

    def start(self, name: str, seed: int) -> Future[Outcome]:
        """One kill of row `name`, at a step that `seed` draws."""
        row, choose = ROWS[name], random.Random(seed)
        return self._pool.submit(self._kill_and_compare, row, choose.randint(row.first_kill, row.steps), choose)

    def without(self, name: str, rule: str, seed: int) -> Future[list[Outcome]]:
        """Kills of row `name` with `rule` switched off, at each step until one shows that it is missing.

        At some steps nothing can: where a cyclic schedule begins anew, a learning rate that was lost is the first one.
        """
        return self._pool.submit(self._until_caught, ROWS[name], rule, random.Random(seed))

    def _until_caught(self, row: Row, rule: str, choose: random.Random) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for kill in choose.sample(range(row.first_kill, row.steps + 1), row.steps + 1 - row.first_kill):
            outcomes.append(self._kill_and_compare(row, kill, choose, rule))
            if outcomes[-1].caught():
                break
        return outcomes

    def _undisturbed_of(self, name: str) -> Journal:
        """Run once for each row, before anything of it is killed: what it compiles is then found by the others."""
        with self._locks[name]:
            if name not in self._undisturbed:
                self._undisturbed[name] = self._trial(name, {"mode": "undisturbed"})
            return self._undisturbed[name]

    def _trial(self, name: str, options: dict[str, Any]) -> Journal:
        self._count += 1
        path = self.folder / f"journal-{self._count}"
        request = {"row": name, "journal": str(path), "rule": None, "environment": {}, **options}
        zygote = self._idle.get()
        try:
            status = zygote.run(request)
        finally:
            self._idle.put(zygote)
        lines = [line.split(" ") for line in path.read_text().splitlines()]
        output = pathlib.Path(f"{path}.out").read_text(errors="replace")[-2000:]
        return Journal(status, lines, output)

    def _kill_and_compare(self, row: Row, kill: int, choose: random.Random, rule: str | None = None) -> Outcome:
        undisturbed = self._undisturbed_of(row.name)
        inside = choose.random() < 0.5
        self._count += 1
        job = {"job": f"row-{self._count}", "rule": rule, "kill": kill, "inside": inside}
        killed = self._trial(row.name, {"mode": "killed", **job})
        what = f"killed {'inside the capture of' if inside else 'after the update of'} step {kill}"
        if killed.all("refused"):
            return Outcome(what, [], killed.sentences("refused"))
        resumed = self._trial(row.name, {"mode": "resumed", **job})
        problems = judge(undisturbed, killed, resumed, row)
        warned = killed.sentences("warned") if killed.all("told") and not killed.all("captured") else ""
        crashed = killed.sentences("crashed") or resumed.sentences("crashed")
        return Outcome(what, problems, resumed.sentences("refused") or warned, crashed)

    def end(self) -> None:
        """Waits for everything."""
        self._pool.shutdown()
        for zygote in self._zygotes:
            zygote.end()
        self._log.close()
        self.agent.remove()


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


def differences(name: str, expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """What the journal of the run `name` has otherwise than it should."""
    wrong = [key for key, value in found.items() if expected.get(key) != value]
    more = " and more" if len(wrong) > 6 else ""
    return [f"the {name} run differs in {', '.join(wrong[:6])}{more}"] if wrong else []
