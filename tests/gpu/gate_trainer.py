"""A child that stands for a trainer at its gate: a stream that waits for a word of shared memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import statistics
import struct
import threading
import time
from ctypes import c_uint64
from typing import Any

import content
from child import Port
from driver import DEVICE_MAP, PORTABLE, CudaError, Driver, Gpu, address_of, pinned, registered
from memory import Legacy

GATE, BACK, BEHIND = 0, 64, 128  # offsets of the words in the page: a line each
COPY_BYTES = 1 << 24


def summary(nanoseconds: list[int]) -> dict[str, Any]:
    micro = [value / 1000 for value in nanoseconds]
    return {"rounds": len(micro), "median_us": statistics.median(micro), "max_us": max(micro)}


class Trainer:
    """What the messages ask."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._gpu: Gpu
        self._gate = 0
        self._page: mmap.mmap
        self._released = threading.Event()

    def start(self, fds: tuple[int, int]) -> dict[str, Any]:
        """fds: the page, and a socket to the releaser."""
        self._gpu = Gpu(Driver())
        self._page = mmap.mmap(fds[0], mmap.PAGESIZE)
        os.close(fds[0])
        self._peer = socket.socket(fileno=fds[1])
        try:
            self._gate = self._register(PORTABLE)
            return {"same_address": self._gate == address_of(self._page)}
        except CudaError as error:
            self._gate = self._register(PORTABLE | DEVICE_MAP)
            return {"same_address": self._gate == address_of(self._page), "registered_portable": str(error)}

    def _register(self, flags: int) -> int:
        """The page's address on the device."""
        with contextlib.ExitStack() as until_known:
            until_known.enter_context(registered(self._gpu.cuda, self._page, flags))
            address = self._gpu.cuda.ask("cuMemHostGetDevicePointer", c_uint64, address_of(self._page), 0)
            self._stack.enter_context(until_known.pop_all())
        return address

    def rounds(self, count: int) -> dict[str, Any]:
        """The stream waits for each of 1 … count; the releaser stores it and tells when it did."""
        taken = []
        for value in range(1, count + 1):
            self._gpu.wait_value(self._gate + GATE, value)
            self._peer.send(struct.pack("<Q", value))
            self._gpu.synchronize()
            seen = time.monotonic_ns()
            taken.append(seen - struct.unpack("<Q", self._peer.recv(8))[0])
        return summary(taken)

    def writes(self, count: int) -> dict[str, Any]:
        """The stream writes each of 1 … count; the releaser, which polls, tells when it saw it."""
        taken = []
        for value in range(1, count + 1):
            self._peer.send(struct.pack("<Q", value))
            self._peer.recv(8)  # it polls
            began = time.monotonic_ns()
            self._gpu.write_value(self._gate + BACK, value)
            taken.append(struct.unpack("<Q", self._peer.recv(8))[0] - began)
        return summary(taken)

    def arm(self, value: int) -> dict[str, Any]:
        """Work is queued behind the gate, and a thread waits for it, as a training loop would in a later call."""
        self._gpu.wait_value(self._gate + GATE, value)
        self._gpu.write_value(self._gate + BEHIND, value)
        self._released.clear()
        threading.Thread(target=self._wait, daemon=True).start()
        return {"waits": not self._gpu.is_done()}

    def _wait(self) -> None:
        self._gpu.make_current()
        self._gpu.synchronize()
        self._released.set()

    def released(self, seconds: float) -> dict[str, Any]:
        """Whether the stream went on, within so many seconds."""
        return {"released": self._released.wait(seconds)}

    def prepare(self) -> dict[str, Any]:
        """Memory to copy, here and by an importer, and all else that must not be made while a gate is armed."""
        self._memory = Legacy(self._gpu, COPY_BYTES)
        self._host = self._stack.enter_context(pinned(self._gpu.cuda, COPY_BYTES))
        self._other = self._gpu.new_stream()
        crc = content.fill(self._host, COPY_BYTES, seed=0)
        self._gpu.copy_in(self._memory.address, address_of(self._host), COPY_BYTES)
        self._gpu.synchronize()
        return {"crc": crc, "exported": self._memory.export()[0]}

    def copies_meanwhile(self, seconds: float) -> dict[str, Any]:
        """Whether a copy on another stream ends within so many seconds while this one waits."""
        done = threading.Event()
        threading.Thread(target=self._copy, args=[done], daemon=True).start()
        return {"went_on": done.wait(seconds), "still_waits": not self._released.is_set()}

    def _copy(self, done: threading.Event) -> None:
        self._gpu.make_current()
        self._gpu.copy_out(address_of(self._host), self._memory.address, COPY_BYTES, self._other)
        self._gpu.synchronize(self._other)
        done.set()


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        trainer = Trainer(stack)
        Port().serve({name: getattr(trainer, name) for name in
                      ("start", "rounds", "writes", "arm", "released", "prepare", "copies_meanwhile")})  # fmt: skip
