"""What a save costs training on this GPU, and what a restore takes: each beside what the driver can do at best, or
beside the same without a save, in the same process."""

from __future__ import annotations

import contextlib
import random
import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import installation
import sizes
from agent import IN_MEMORY_ONLY
from child import Broken, Child, OutOfTime, Who
from losses import interval, loss_of
from results import Part, Skip, Wrong
from story import device_of, place, running_agent, size_of

_PATIENCE = 300.0
_BLOCK, _BLOCKS = 1 << 30, 12  # of the limits
_ROUNDS = 5
_RESTORES = 2
_RESTORE_SECONDS = 15  # for them, with their new checkpointers
_WINDOW_SECONDS = 0.25  # of forward and backward passes: about what the copies take, as in a larger run
_DISK = 5e8  # bytes a second of a slow disk: what a peer's save may take
_WAYS = ("dcp.async_save, thread", "torch.save", "dcp.async_save, process, pinned staging", "dcp.async_save, process")
Windows = dict[str, list[dict[str, Any]]]  # by kind: "save", "without", "again"


class Measured:
    """The cases, in their order. Each finding has `value` and `unit`, and `limit` and `ratio` where there is one."""

    def __init__(self, part: Part, child: Child, agent: Any) -> None:
        self._part, self._child, self._agent = part, child, agent
        self._limits: dict[str, list[float]] = {}
        self._windows: Windows = {}
        self._captured: list[float] = []
        self.state_bytes = self.pulled = 0
        tiny = part.options.size == "tiny"
        self._block, self._count = (_BLOCK >> 10, _BLOCKS) if tiny else (_BLOCK, _BLOCKS)
        self._window_seconds = 0.01 if tiny else _WINDOW_SECONDS

    def start(self, values: dict[str, Any], size: sizes.Size) -> None:
        values["device"] = device_of(self._part)
        told = self._child.ask("start", size=size.values(), device=device_of(self._part), socket=self._agent.socket,
                               region=str(self._agent.region), window_seconds=self._window_seconds)  # fmt: skip
        if "skip" in told:
            raise Skip(told["skip"])
        values.update(parameters=size.parameters(), **told)
        self.state_bytes = told["state_bytes"]

    def limit_out(self, values: dict[str, Any]) -> None:
        """Measures the way in too: what takes long is to pin the memory."""
        told = self._child.ask("limits", block=self._block, count=self._count, rounds=_ROUNDS)
        self._limits = {name: told.pop(name) for name in ("out", "in")}
        values.update(told)
        self._limit(values, "out")

    def limit_in(self, values: dict[str, Any]) -> None:
        if "in" not in self._limits:
            raise Skip("not measured: see D2H")
        self._limit(values, "in")

    def _limit(self, values: dict[str, Any], way: str) -> None:
        _spread(values, self._limits[way], "B/s")
        values.update(device=device_of(self._part), bytes=self._block * self._count)

    def captures(self, values: dict[str, Any]) -> None:
        told = self._child.ask("captures", rounds=_ROUNDS)
        self._captured = [told["bytes"] / one for one in told["captured_seconds"]]
        _spread(values, [told["bytes"] / one for one in told["copied_seconds"]], "B/s")
        values.update(device=device_of(self._part), bytes=told["bytes"])
        self._beside(values, "out")

    def captured(self, values: dict[str, Any]) -> None:
        """The same captures, until they are sealed: with the sums."""
        if not self._captured:
            raise Skip("not measured: see capture")
        _spread(values, self._captured, "B/s")
        values["device"] = device_of(self._part)
        self._beside(values, "out")

    def restore(self, values: dict[str, Any]) -> None:
        told = self._child.ask("restore", rounds=_RESTORES)
        _spread(values, [told["bytes"] / one for one in told["seconds"]], "B/s")
        values.update(device=device_of(self._part), bytes=told["bytes"], sources=told["sources"])
        self._beside(values, "in")
        if told["sources"] != ["region"]:
            raise Wrong(f"restored from {told['sources']}, not from the region")

    def run_windows(self, values: dict[str, Any]) -> None:
        """What the next three cases look at."""
        self._windows = self.windows()
        values.update(device=device_of(self._part), windows_of_each=len(self._windows["save"]))

    def windows(self, seconds: float | None = None) -> Windows:
        """Of the way that the child is prepared for. seconds: none begins later than that."""
        found: Windows = {}
        options = self._part.options
        self._child.post("windows", count=options.windows, seed=options.seed, seconds=seconds)
        while "end" not in (line := self._child.answer()[0]):
            found.setdefault(line["kind"], []).append(line)
        self.pulled = line["pulled"]  # saves of the present way
        return found

    def prepare(self, way: str) -> None:
        """For its windows. Skip: it cannot be had here."""
        told = self._child.ask("prepare", way=way, folder=str(self._agent.storage.parent))
        if "skip" in told:
            raise Skip(told["skip"])

    def blocking(self, values: dict[str, Any]) -> None:
        values["device"] = device_of(self._part)
        _spread(values, [window["host_seconds"] for window in self._windows["save"]], "s")

    def gate(self, values: dict[str, Any]) -> None:
        values["device"] = device_of(self._part)
        seconds = [window["gate_stream_seconds"] for window in self._windows["save"]]
        if None in seconds:
            raise Skip("no stream on the CPU: the gate stops the thread instead")
        _spread(values, seconds, "s")

    def loss(self, values: dict[str, Any], with_it: str, without: str) -> None:
        """Of `with_it` against `without`, as a share of the step."""
        pair = [[window["seconds"] for window in self._windows[kind]] for kind in (with_it, without)]
        values.update(device=device_of(self._part), unit="of a step", n=len(pair[0]), value=loss_of(*pair))
        values["step_seconds"] = statistics.median(pair[1])
        values["spread"] = interval(*pair, random.Random(self._part.options.seed))

    def way(self, values: dict[str, Any], do: str, way: str = "") -> None:
        """A whole save onto the disk; `value` is what the caller waits. way: of a peer."""
        values.update(device=device_of(self._part), unit="s")
        if shutil.disk_usage(self._agent.storage).free < self.state_bytes * 1.2:
            raise Skip("the disk has no room for it")
        self._child.post(do, **({"way": way, "folder": str(self._agent.storage.parent)} if way else {}))
        try:
            while "done_seconds" not in values:
                told = self._child.answer()[0]
                if "skip" in told:
                    raise Skip(told["skip"])
                values.update(told)
                values["value"] = values["blocked_seconds"]
        except OutOfTime:
            if "value" not in values:
                raise
            values["note"] = "still writing when the time was over"
        except Broken as broken:
            if not way:
                raise
            raise Skip(f"it fails here: {str(broken).strip().splitlines()[-1]}") from broken

    def _beside(self, values: dict[str, Any], way: str) -> None:
        if way in self._limits:
            limit = statistics.median(self._limits[way])
            values.update(limit=limit, ratio=values["value"] / limit)


def _spread(values: dict[str, Any], found: list[float], unit: str) -> None:
    values.update(value=statistics.median(found), unit=unit, n=len(found), spread=[min(found), max(found)])


@contextmanager
def measured(part: Part, flush_every: int = IN_MEMORY_ONLY) -> Iterator[Measured]:
    """flush_every: steps from one that goes onto the disk by itself to the next."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(place(part, part.name))
        agent = stack.enter_context(running_agent(part, folder, flush_every))
        who = Who(environment=installation.find().environment())
        child = stack.enter_context(Child("bench_trainer.py", part.left, part.log, who, _PATIENCE))
        yield Measured(part, child, agent)


def _ask_windows(part: Part, bench: Measured) -> None:
    if part.ask("windows", bench.run_windows, needs=0):
        part.ask("blocking: host time in step() and gate()", bench.blocking, needs=0)
        part.ask("blocking: the gate on the stream", bench.gate, needs=0)
        part.ask("a step with a save against one without", bench.loss, "save", "without", needs=0)
        part.ask("A/A: a step without against one without", bench.loss, "again", "without", needs=0)


def run(part: Part) -> None:
    with measured(part) as bench:
        if not part.ask("start", bench.start, size_of(part), needs=0):
            return
        part.ask("limit of D2H: cuMemcpyDtoHAsync", bench.limit_out, needs=0)
        part.ask("limit of H2D: cuMemcpyHtoDAsync", bench.limit_in, needs=0)
        part.ask("capture, D2H", bench.captures, needs=0)
        part.ask("capture, sealed", bench.captured, needs=0)
        _ask_windows(part, bench)
        # Before the restores: what is on the disk already is not written again when their checkpointers close.
        needs = bench.state_bytes / _DISK
        part.ask("ckptd save, then on disk", bench.way, "durable", needs=needs + _RESTORE_SECONDS)
        part.ask("restore from the region, H2D", bench.restore, needs=0)
        for way in _WAYS:  # the call returns in a part of that, even where the disk is not done
            part.ask(f"{way}, then on disk", bench.way, "peer", way, needs=needs / 4)
