"""The gate of a pull: a stream of the trainer waits for a word in a tmpfs page, and another process stores it."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
import tempfile
from typing import Any

from child import Child, Who
from gate_trainer import COPY_BYTES
from results import Part, Wrong

_ROUNDS = 200
_NEEDS = 5.0  # seconds a case
_PATIENCE = 2.0  # seconds after which a copy that has not ended is taken to wait


class Gate(contextlib.ExitStack):
    """A page of /dev/shm, a trainer that has it registered, and releasers that have it mapped."""

    def __init__(self, part: Part, connections: int = 32) -> None:
        super().__init__()
        self._part, self._connections = part, connections

    def __enter__(self) -> Gate:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def _start(self) -> None:
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            file.truncate(mmap.PAGESIZE)
            self._page = os.dup(file.fileno())
        self.callback(os.close, self._page)
        who = Who(environment={"CUDA_DEVICE_MAX_CONNECTIONS": str(self._connections)})
        self.trainer = self._child("gate_trainer.py", who)
        self.releaser = self._child("gate_releaser.py")
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.started = self.trainer.ask("start", (self._page, ends[0].fileno()))
        self.releaser.ask("start", (self._page, ends[1].fileno()))
        for end in ends:
            end.close()

    def _child(self, script: str, who: Who | None = None) -> Child:
        return self.enter_context(Child(script, self._part.left, self._part.log, who))

    def another_releaser(self) -> Child:
        made = self._child("gate_releaser.py")
        made.ask("start", (self._page,))
        return made

    def importer(self, values: dict[str, Any]) -> tuple[Child, int]:
        """A process that has memory of the trainer's mapped, and the checksum of what is in it."""
        prepared = self.trainer.ask("prepare")
        made = self._child("importer.py")
        made.ask("start")
        made.ask("open", kind="legacy", size=COPY_BYTES, checked=COPY_BYTES, exported=prepared["exported"])
        values["bytes_per_second_before"] = made.ask("copy")["bytes_per_second"]
        return made, prepared["crc"]

    def arm(self, value: int) -> None:
        if not self.trainer.ask("arm", value=value)["waits"]:
            raise Wrong("the stream does not wait")

    def must_release(self, by: Child, value: int) -> None:
        by.ask("store", value=value)
        if not self.trainer.ask("released", seconds=_PATIENCE)["released"]:
            raise Wrong("the store does not release the stream")


def _stores(values: dict[str, Any], part: Part) -> None:
    with Gate(part) as gate:
        values.update(gate.started)
        gate.releaser.post("rounds", count=_ROUNDS)
        values.update(gate.trainer.ask("rounds", count=_ROUNDS))


def _writes(values: dict[str, Any], part: Part) -> None:
    with Gate(part) as gate:
        gate.releaser.post("polls", count=_ROUNDS)
        values.update(gate.trainer.ask("writes", count=_ROUNDS))


def _another_value(values: dict[str, Any], part: Part) -> None:
    with Gate(part) as gate:
        gate.arm(2)
        for other in (1, 3):
            gate.releaser.ask("store", value=other)
            if gate.trainer.ask("released", seconds=0.2)["released"]:
                raise Wrong(f"a stream that waits for 2 went on at {other}")
        gate.must_release(gate.releaser, 2)


def _releaser_dies(values: dict[str, Any], part: Part) -> None:
    with Gate(part) as gate:
        gate.arm(1)
        gate.releaser.kill()
        values["released_by_death"] = gate.trainer.ask("released", seconds=0.5)["released"]
        if values["released_by_death"]:
            raise Wrong("the stream went on when the releaser died")
        gate.must_release(gate.another_releaser(), 1)


def _trainer_dies(values: dict[str, Any], part: Part) -> None:
    with Gate(part) as gate:
        importer, crc = gate.importer(values)
        before = importer.ask("used")["bytes"]
        gate.arm(1)
        values["seconds_to_end"] = gate.trainer.kill()
        values["used_by_it"] = before - importer.ask("used")["bytes"]
        another = gate.enter_context(Gate(part))
        another.arm(1)
        another.must_release(another.releaser, 1)
        values["a_new_trainer_works"] = True


def _trainer_is_stopped(values: dict[str, Any], part: Part) -> None:
    with Gate(part) as gate:
        gate.arm(1)
        gate.trainer.signal(signal.SIGSTOP)
        gate.releaser.ask("store", value=1)
        gate.trainer.signal(signal.SIGCONT)
        gate.must_release(gate.releaser, 1)


def _other_stream(values: dict[str, Any], part: Part, connections: int) -> None:
    with Gate(part, connections) as gate:
        gate.trainer.ask("prepare")
        gate.arm(1)
        values.update(gate.trainer.ask("copies_meanwhile", seconds=_PATIENCE))
        gate.must_release(gate.releaser, 1)


def _other_process(values: dict[str, Any], part: Part, connections: int) -> None:
    with Gate(part, connections) as gate:
        importer, crc = gate.importer(values)
        gate.arm(1)
        copied = importer.ask("copy")
        values["bytes_per_second"] = copied["bytes_per_second"]
        values["equal"] = copied["crc"] == crc
        if not values["equal"]:
            raise Wrong("a copy that reports success holds other bytes")
        gate.must_release(gate.releaser, 1)


def run(part: Part) -> None:
    part.ask("a CPU store of another process releases the stream", _stores, part, needs=_NEEDS)
    part.ask("a write of the stream is seen by another process's CPU", _writes, part, needs=_NEEDS)
    part.ask("other values release nothing", _another_value, part, needs=_NEEDS)
    part.ask("the releaser is killed", _releaser_dies, part, needs=_NEEDS)
    part.ask("the trainer is killed while it waits", _trainer_dies, part, needs=_NEEDS)
    part.ask("the trainer is stopped while it waits", _trainer_is_stopped, part, needs=_NEEDS)
    for connections in (1, 32):
        told = f"CUDA_DEVICE_MAX_CONNECTIONS={connections}"
        case = f"copies of another process while a stream waits, {told}"
        part.ask(case, _other_process, part, connections, needs=_NEEDS)
        part.ask(f"copies on another stream while one waits, {told}", _other_stream, part, connections, needs=_NEEDS)
