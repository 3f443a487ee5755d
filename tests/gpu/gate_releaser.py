"""A child that stands for the agent's side of a gate: plain loads and stores in its own mapping, no driver."""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
import time

from child import Port
from driver import address_of
from gate_trainer import BACK, GATE


class Releaser:
    """What the messages ask. An aligned 64-bit store by ctypes is one instruction."""

    def start(self, fds: tuple[int, ...]) -> None:
        """fds: the page, and for `rounds` and `polls` a socket to the trainer."""
        self._page = mmap.mmap(fds[0], mmap.PAGESIZE)
        os.close(fds[0])
        self._peer = socket.socket(fileno=fds[1]) if len(fds) > 1 else None
        self._gate = ctypes.c_uint64.from_address(address_of(self._page) + GATE)
        self._back = ctypes.c_uint64.from_address(address_of(self._page) + BACK)

    def store(self, value: int) -> None:
        self._gate.value = value

    def rounds(self, count: int) -> None:
        """Stores each value that the trainer sends, and tells it when."""
        for _ in range(count):
            value = self._next()
            when = time.monotonic_ns()
            self._gate.value = value
            self._peer.send(struct.pack("<Q", when))

    # Polling a word of memory is what is measured here.
    def polls(self, count: int) -> None:
        """Polls for each value that the trainer announces, and tells it when it was there."""
        for _ in range(count):
            value = self._next()
            self._peer.send(struct.pack("<Q", value))
            while self._back.value != value:
                pass
            self._peer.send(struct.pack("<Q", time.monotonic_ns()))

    def _next(self) -> int:
        return struct.unpack("<Q", self._peer.recv(8))[0]


if __name__ == "__main__":
    releaser = Releaser()
    Port().serve({name: getattr(releaser, name) for name in ("start", "store", "rounds", "polls")})
