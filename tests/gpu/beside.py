"""What a save costs training by ckptd and by what people use today: the same loop, the same state, the same disk, one
way after the other. Of each way steps with a save and steps without one take turns, and steps without one are compared
with others without one (A/A): what that finds is noise."""

from __future__ import annotations

import random
import statistics
from typing import Any

from bench import Measured, Windows, measured
from child import Broken
from losses import interval, loss_of
from results import Part, Skip, Wrong
from story import device_of, size_of
from ways import OURS

WAYS = (*OURS, "torch.save", "safetensors", "dcp.async_save, thread", "dcp.async_save, process, pinned staging",
        "dcp.async_save, process", "torch_checkpointing")  # fmt: skip
_EVERY_STEP = 1  # flush_every: ours goes onto the disk too
_FEWEST = 3  # windows of each kind; fewer tell nothing
_RESERVE = 5.0  # seconds to prepare a way, at least


def figures_of(windows: Windows, draw: random.Random) -> dict[str, Any]:
    """Of one way; times in seconds, losses as shares of a step, each with its interval of 95 %."""
    seconds = {kind: [one["seconds"] for one in found] for kind, found in windows.items()}
    saves = windows["save"]
    host = [one["host_seconds"] for one in saves]
    on_stream = [one["gate_stream_seconds"] for one in saves]
    values: dict[str, Any] = {"n": len(saves), "step_seconds": statistics.median(seconds["without"])}
    values.update(blocked_seconds=statistics.median(host), most_blocked_seconds=max(host))
    if None not in on_stream:
        values.update(gate_stream_seconds=statistics.median(on_stream), most_gate_stream_seconds=max(on_stream))
    for name, kind in (("loss", "save"), ("again", "again")):
        values[name] = loss_of(seconds[kind], seconds["without"])
        values[f"{name}_interval"] = interval(seconds[kind], seconds["without"], draw)
    values["done_seconds"] = statistics.median(one["done_seconds"] for one in saves)
    return values


def _measure(values: dict[str, Any], bench: Measured, part: Part, way: str, seconds: float) -> None:
    values.update(way=way, device=device_of(part))
    try:
        bench.prepare(way)
        windows = bench.windows(seconds)
    except Broken as broken:
        if way in OURS:
            raise
        raise Skip(f"it fails here: {str(broken).strip().splitlines()[-1]}") from broken
    if len(windows.get("save", ())) < _FEWEST:
        raise Skip(f"out of time: fewer than {_FEWEST} saves in {seconds:.0f} s")
    values.update(figures_of(windows, random.Random(part.options.seed)))
    if way in OURS:
        values["pulled"] = bench.pulled
        if (way == "ckptd, pull") != (bench.pulled >= values["n"]):
            raise Wrong(f"{bench.pulled} of {values['n']} saves were pulled")
    if values["n"] < part.options.windows:
        values["note"] = f"{values['n']} windows of each kind: the time was over"


def run(part: Part) -> None:
    with measured(part, _EVERY_STEP) as bench:
        if not part.ask("start", bench.start, size_of(part, "middle"), needs=0):
            return
        for index, way in enumerate(WAYS):
            share = part.left() / (len(WAYS) - index) - _RESERVE
            part.ask(way, _measure, bench, part, way, share, needs=_RESERVE)
