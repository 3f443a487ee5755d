"""The processes of one job, as the driver sees them. All of them, and what they started, are gone after `close`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
import time
from typing import IO, Any

_PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS = 10.0  # until what was killed is gone
_HERE = pathlib.Path(__file__).resolve().parents[1]


class Failed(RuntimeError):
    """A rank did not do what it was asked to: the last line of why."""


class Wrong(RuntimeError):
    """What was restored is not what was saved."""


class Rank:
    """One worker in a session of its own, so that its processes are found at the end. log: where it says more."""

    def __init__(self, python: pathlib.Path, spec: dict[str, Any], environment: dict[str, str], log: IO[bytes]) -> None:
        self._log = log.name
        self._buffer = b""
        self._process = subprocess.Popen(
            [python, "-m", "peerbench.worker", json.dumps(spec)], cwd=_HERE, env=environment, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=log, start_new_session=True)  # fmt: skip

    def order(self, do: str, **arguments: Any) -> None:
        """Without waiting for the answer. Failed, if it is gone."""
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as gone:
            raise Failed(self._last_words()) from gone

    def answer(self, until: float) -> dict[str, Any]:
        """Failed with its error, with its end, or when time.monotonic() is past `until`."""
        output = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([output], [], [], max(until - time.monotonic(), 0))[0]:
                raise Failed("hangs: no answer within its time")
            read = os.read(output, 1 << 16)
            if not read:
                raise Failed(self._last_words())
            self._buffer += read
        line, self._buffer = self._buffer.split(b"\n", 1)
        found = json.loads(line)
        if "error" in found:
            raise Failed(found["error"])
        return found

    def _last_words(self) -> str:
        lines = pathlib.Path(self._log).read_text(errors="replace").strip().splitlines()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        return f"ended with status {self._process.poll()}: {lines[-1] if lines else 'without a word'}"

    def kill(self) -> None:
        """Its whole session; returns when nothing of it is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        deadline = time.monotonic() + _END_SECONDS
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < deadline:
                if os.waitpid(-self._process.pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.005)


class Ranks:
    """A context manager. until: time.monotonic() at which the job must be through with what it is asked."""

    def __init__(self, until: float) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a killed rank leaves becomes ours
        self._until = until
        self._ranks: list[Rank] = []

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self._ranks:
            rank.kill()

    def start(self, python: pathlib.Path, specs: list[dict[str, Any]], environments: list[dict[str, str]],
              log: IO[bytes]) -> list[dict[str, Any]]:  # fmt: skip
        """Their first answers."""
        for spec, environment in zip(specs, environments):
            self._ranks.append(Rank(python, spec, environment, log))
        return self._answers()

    def ask(self, do: str, **arguments: Any) -> list[dict[str, Any]]:
        """Of all ranks at once; the answers, by rank."""
        for rank in self._ranks:
            rank.order(do, **arguments)
        return self._answers()

    def _answers(self) -> list[dict[str, Any]]:
        return [rank.answer(self._until) for rank in self._ranks]
