#!/usr/bin/env python3
"""Findings: one JSON object a line, on disk before the next question. `results.py FILE` prints them as Markdown."""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from child import OutOfTime
from driver import CudaError, MissingFunction, NoDriver

OK = "ok"  # asked and answered; what ckptd relies on holds
REFUSED = "refused"  # the driver said no where ckptd can do without
FAILED = "failed"  # what ckptd relies on does not hold, or a script broke
SKIPPED = "skipped"  # not asked: see the reason
Values = dict[str, Any]


class Skip(RuntimeError):
    """The case cannot be asked here: the text says why."""


class Refused(RuntimeError):
    """The driver does not do what ckptd can do without."""


class Wrong(RuntimeError):
    """What ckptd relies on does not hold."""


class Results:
    """A new file. Each finding is synced before `add` returns. FileExistsError."""

    def __init__(self, path: pathlib.Path) -> None:
        self._file = path.open("x")
        self.statuses: list[str] = []
        self.driver_answered = False  # besides the probe, which asks the machine too

    def add(self, part: str, case: str, status: str, values: Values, reason: str = "", seconds: float = 0.0) -> None:
        finding = {"part": part, "case": case, "status": status, "seconds": round(seconds, 3), "values": values}
        if reason:
            finding["reason"] = reason
        self._file.write(json.dumps(finding) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.statuses.append(status)
        self.driver_answered |= status == OK and part != "probe" and values.get("device") != "cpu"
        print(f"{status:8}{part}: {case}" + (f": {reason}" if reason else ""), flush=True)


class Part:
    """One part: its name, its findings, its seconds, what the command line says. log: where children write what they
    say."""

    def __init__(self, name: str, results: Results, seconds: float, log: Any, options: Any = None) -> None:
        self.name, self.seconds, self.log, self.options = name, seconds, log, options
        self._results = results
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def ask(self, case: str, question: Callable[..., None], *arguments: Any, needs: float, must: bool = True) -> bool:
        """Runs question(values, *arguments), which fills `values`, and adds the finding; True where it is ok.

        needs: seconds that must be left; must: whether ckptd relies on it, so that a refusal fails.
        """
        values: Values = {}
        began = time.monotonic()
        if self.left() < needs:
            status, reason = SKIPPED, f"out of time: needs {needs:.1f} s"
        else:
            status, reason = _outcome(must, question, values, *arguments)
        self._results.add(self.name, case, status, values, reason, time.monotonic() - began)
        return status == OK

    def skip(self, case: str, reason: str) -> None:
        self._results.add(self.name, case, SKIPPED, {}, reason)


def _outcome(must: bool, question: Callable[..., None], values: Values, *arguments: Any) -> tuple[str, str]:
    try:
        question(values, *arguments)
        return OK, ""
    except Skip as skip:
        return SKIPPED, str(skip)
    except MissingFunction as missing:
        return SKIPPED, f"the driver has no {missing}"
    except NoDriver as error:
        return SKIPPED, f"no driver: {error}"
    except OutOfTime:
        return SKIPPED, "out of time"
    except CudaError as error:
        values["error"] = error.name
        return (FAILED if must else REFUSED), str(error)
    except Refused as refused:
        return REFUSED, str(refused)
    except Wrong as wrong:
        return FAILED, str(wrong)
    except Exception as error:
        return FAILED, f"{type(error).__name__}: {error}"


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """The findings of a file; a last line that a killed run cut is left out."""
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def text(value: Any) -> str:
    """For a cell of a table."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(text, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={text(one)}" for name, one in value.items())
    return str(value).replace("|", "\\|").replace("\n", " ")


def _device(findings: list[dict[str, Any]]) -> str:
    for finding in findings:
        if (finding["part"], finding["case"], finding["status"]) == ("probe", "device", OK):
            return "{name}, driver {driver}".format(**finding["values"])
    return "No device was probed"


def table(findings: list[dict[str, Any]]) -> str:
    """Markdown: the device and the counts, then a table for each part."""
    parts = list(dict.fromkeys(finding["part"] for finding in findings))
    statuses = [finding["status"] for finding in findings]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in (OK, REFUSED, FAILED, SKIPPED))
    lines = [f"{_device(findings)}: {counts}"]
    for part in parts:
        lines += ["", f"## {part}", "", "| case | result | found |", "| --- | --- | --- |"]
        for finding in (finding for finding in findings if finding["part"] == part):
            found = [text(finding["reason"])] if "reason" in finding else []
            found += [f"{name} {text(value)}" for name, value in finding["values"].items()]
            lines.append(f"| {finding['case']} | {finding['status']} | {'; '.join(found)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(read(pathlib.Path(sys.argv[1]))))
