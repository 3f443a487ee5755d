"""Why a step takes longer while its state is copied: the same step beside copies alone, beside threads that only read
memory, and beside both, without ckptd. Steps of each kind take turns; what "nothing" against "nothing again" finds is
noise."""

from __future__ import annotations

import random
import statistics
from typing import Any

import installation
from child import Child, Who
from losses import interval, loss_of
from results import Part, Skip
from story import size_of

KINDS = ("nothing", "nothing again", "copies of 4 MiB", "copies of 64 MiB", "copies at half speed", "sums", "copies and sums")
_PATIENCE = 60.0
_WINDOW_SECONDS = 0.2
_FEWEST = 3


def _start(values: dict[str, Any], part: Part, child: Child) -> None:
    installation.require_torch()
    if part.options.cpu:
        raise Skip("asks a GPU only")
    size = size_of(part, "middle")
    values.update(child.ask("start", size=size.values(), bytes=size.state_bytes(), window_seconds=_WINDOW_SECONDS))
    if "skip" in values:
        raise Skip(values["skip"])


def _windows(values: dict[str, Any], part: Part, child: Child, found: dict[str, list[float]]) -> None:
    child.post("windows", kinds=KINDS, count=part.options.windows, seed=part.options.seed, seconds=part.left() - 5)
    while "end" not in (line := child.answer()[0]):
        found.setdefault(line["kind"], []).append(line["seconds"])
    values["windows_of_each"] = min((len(one) for one in found.values()), default=0)
    if values["windows_of_each"] < _FEWEST:
        raise Skip(f"out of time: fewer than {_FEWEST} steps of a kind")


def _loss(values: dict[str, Any], part: Part, seconds: list[float], without: list[float]) -> None:
    values.update(device="cuda", unit="of a step", n=len(seconds), value=loss_of(seconds, without))
    values["step_seconds"] = statistics.median(without)
    values["spread"] = interval(seconds, without, random.Random(part.options.seed))


def run(part: Part) -> None:
    found: dict[str, list[float]] = {}
    who = Who(environment=installation.find().environment())
    with Child("contention_trainer.py", part.left, part.log, who, _PATIENCE) as child:
        if part.ask("start", _start, part, child, needs=0) and part.ask("steps", _windows, part, child, found, needs=0):
            for kind in KINDS[1:]:
                part.ask(f"a step beside {kind}", _loss, part, found[kind], found[KINDS[0]], needs=0)
