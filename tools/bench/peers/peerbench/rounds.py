"""The run: every way once a round, in another order each time; what is found goes into one document."""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

from . import figures
from .environments import NotInstalled
from .limits import Disk, Memcpy
from .ranks import Failed, Wrong
from .visit import Settings, Visit
from .workloads import Workload

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from machine import machine, now  # noqa: E402

Document = dict[str, Any]

_TRIES = 2  # for one visit
_LOG_END = 4000  # characters of what a failed one said


class Run:
    """out: where the document is written after every visit; None: nowhere."""

    def __init__(self, ways: list[str], rounds: int, settings: Settings, out: pathlib.Path | None) -> None:
        self._ways, self._rounds, self._settings, self._out = ways, rounds, settings, out
        self.document: Document = {
            "format": 1, "complete": False, "began": now(), "machine": machine(settings.folder),
            "settings": {"rounds": rounds, "iterations": settings.iterations, "threads": settings.threads,
                         "disk": settings.tool, "deadline": settings.deadline},
            "workloads": [],
        }  # fmt: skip

    def measure(self, workload: Workload, told: Callable[[str], None]) -> Document:
        """All rounds of one workload. A way that was given up is not tried again in it."""
        empty = {"version": None, "error": None}
        ways = {way: {**empty, "failures": [], "visits": [], "figures": {}} for way in self._ways}
        found = {"name": workload.name, "bytes": workload.nbytes, "ranks": workload.ranks,
                 "tensors": workload.tensors, "best": {}, "ways": ways}  # fmt: skip
        self.document["workloads"].append(found)
        limits = Memcpy(workload.nbytes), Disk(self._settings.folder, workload.nbytes, self._settings.tool)
        for number in range(self._rounds):
            for way in turned(self._ways, number):
                if ways[way]["error"] is None:
                    told(f"{workload.name}: round {number + 1} of {self._rounds}: {way}")
                    self._visit(way, workload, limits, ways[way])
                    self._sum_up(found)
        return found

    def _visit(self, way: str, workload: Workload, limits: tuple[Memcpy, Disk], result: Document) -> None:
        """One that fails is repeated, as some peers' start is a race; one that fails again is given up, and at once
        where it restored something else than was saved."""
        for _ in range(_TRIES):
            began = time.monotonic()
            with Visit(way, workload, self._settings) as visit:
                try:
                    taken = visit.figures(*limits)
                except (Failed, NotInstalled, Wrong) as failed:
                    error = f"{type(failed).__name__}: {failed}"
                    print(f"{way}: {error}", file=sys.stderr, flush=True)
                    result["failures"].append({"at": now(), "error": error, "log": visit.log()[-_LOG_END:]})
                    if isinstance(failed, Failed):
                        continue
                    break
            result["version"] = taken.pop("version")
            result["visits"].append({"at": now(), "took": round(time.monotonic() - began, 1), **taken})
            return
        result["error"] = error

    def _sum_up(self, found: Document) -> None:
        for result in found["ways"].values():
            result["figures"] = figures.of_visits(result["visits"])
        found["best"] = figures.add_best({way: result["figures"] for way, result in found["ways"].items()})
        self.write()

    def write(self, complete: bool = False) -> None:
        """The document as it is now, whole or not at all."""
        self.document["complete"] = complete
        if self._out is not None:
            new = self._out.with_name(self._out.name + ".new")
            new.write_text(json.dumps(self.document, indent=1) + "\n")
            new.rename(self._out)


def turned(ways: list[str], by: int) -> list[str]:
    """Another one begins each round."""
    by %= len(ways)
    return ways[by:] + ways[:by]
