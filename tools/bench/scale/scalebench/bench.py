"""ckptd-bench as a program: what it can, one run of it, and what it printed."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
from dataclasses import dataclass
from typing import Any

from .series import Point

_HELP_SECONDS = 30.0
_END_SECONDS = 10.0  # for a bench that is asked to end


class Unusable(RuntimeError):
    """Why a program is no ckptd-bench that runs here."""


@dataclass(frozen=True)
class Help:
    """cases: what it says of each. flags: that it takes."""

    cases: dict[str, str]
    flags: frozenset[str]

    def lacks(self, point: Point) -> str:
        """Why this build cannot measure the point; "": it can."""
        if point.case not in self.cases:
            return f"this ckptd-bench has no case {point.case}"
        missing = [flag for flag in point.size.flags() if flag.startswith("--") and flag not in self.flags]
        return f"this ckptd-bench has no flag {missing[0]}" if missing else ""


def read_help(text: str) -> Help:
    """From the lists of cases and flags, a line each."""
    cases, _, flags = text.partition("\nFlags:")
    _, _, cases = cases.partition("\nCases")
    return Help({found[1]: found[2] for found in re.finditer(r"^  (\S+) +(\S.*)$", cases, re.MULTILINE)},
                frozenset(re.findall(r"^  (--\S+)", flags, re.MULTILINE)))  # fmt: skip


def read_lines(stdout: str, stderr: str, status: int) -> tuple[list[dict[str, Any]], str]:
    """The lines that a run printed, and why it failed; "": it did not."""
    lines: list[dict[str, Any]] = []
    for text in stdout.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or "case" not in line or not line.keys() & {"value", "skipped"}:
            return lines, f"not a line of ckptd-bench: {text[:80]}"
        lines.append(line)
    if status or not lines:
        said = stderr.strip().splitlines()
        return lines, said[0].removeprefix("ckptd-bench: ") if said else f"status {status} and no word why"
    return lines, ""


class Bench:
    """build: the tree with bin/ckptd-bench. folder, region: where it may write. deadline: seconds of one run."""

    def __init__(self, build: pathlib.Path, folder: pathlib.Path, region: pathlib.Path, deadline: float) -> None:
        self._program = str(build / "bin" / "ckptd-bench")
        self._places = ["--dir", str(folder), "--region", str(region)]
        self._deadline = deadline
        done = subprocess.run([self._program, "--help"], capture_output=True, text=True, timeout=_HELP_SECONDS)
        self.help = read_help(done.stdout)
        if done.returncode or not self.help.cases:
            raise Unusable(f"{self._program} --help lists no cases: {done.stderr.strip() or done.returncode}")

    def run(self, point: Point, rounds: int) -> tuple[list[dict[str, Any]], str]:
        """As read_lines."""
        command = [self._program, point.case, *point.size.flags(), "--n", str(rounds), *self._places]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True)  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=self._deadline)
        except subprocess.TimeoutExpired:
            return [], f"not done within {self._deadline:g} s"
        finally:
            _end(process)
        return read_lines(stdout, stderr, process.returncode)


def _end(process: subprocess.Popen[str]) -> None:
    """It takes its folders and its agent away when it is asked; what does not is killed, its agent too."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
