"""A child that stands for ckptd-copier: it imports another process's memory and copies it. Also the one that looks on
and says how much memory the GPU has left."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import time
from collections.abc import Iterator
from typing import Any

import content
from child import Port, close_all
from driver import CudaError, Driver, Gpu, address_of, pinned
from memory import KINDS, Memory, attributes

_MOST_COPIES = 900  # a stream's queue holds 1024; a full one blocks the call


class Importer:
    """What the messages ask. `size`: bytes of the allocation; `checked`: of its beginning that hold the pattern."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._gpu: Gpu
        self._memory: Memory
        self._host: mmap.mmap
        self._checked = 0
        self._rate = 0.0

    def start(self) -> dict[str, Any]:
        began = time.monotonic()
        self._gpu = Gpu(Driver())
        return {"seconds": time.monotonic() - began}

    def open(self, kind: str, size: int, checked: int, exported: dict[str, Any],
             fds: tuple[int, ...] = ()) -> dict[str, Any]:  # fmt: skip
        try:
            self._memory = KINDS[kind][1](self._gpu, size, exported, fds[0] if fds else None)
        finally:
            close_all(fds)
        self._checked = checked
        self._host = self._stack.enter_context(pinned(self._gpu.cuda, checked))
        access = getattr(self._memory, "access", "")
        return {"attributes": attributes(self._gpu, self._memory.address), "access": access}

    def copy(self) -> dict[str, Any]:
        to = address_of(self._host)
        copied = content.copy_out(self._gpu, self._host, to, self._memory.address, self._checked)
        self._rate = copied["bytes_per_second"]
        return copied

    def copy_long(self, seconds: float) -> Iterator[dict[str, Any]]:
        """Submits about so many seconds of copies, says so, and answers when the last is done and at what time."""
        copies = min(max(math.ceil(seconds * self._rate / self._checked), 2), _MOST_COPIES)
        self._host[: self._checked] = bytes(self._checked)
        for _ in range(copies):
            self._gpu.copy_out(address_of(self._host), self._memory.address, self._checked)
        yield {"copies": copies}
        self._gpu.synchronize()
        ended = time.monotonic()
        yield {"crc": content.checksum(self._host, self._checked), "ended": ended}

    def close(self) -> None:
        self._memory.free()

    def used(self) -> dict[str, Any]:
        return {"bytes": self._gpu.used_memory(), "total": self._gpu.total_memory()}

    def has_room(self, size: int) -> dict[str, Any]:
        """Whether `size` bytes can be allocated now; they are freed at once."""
        try:
            address = self._gpu.cuda.ask("cuMemAlloc", ctypes.c_uint64, size)
        except CudaError as error:
            return {"room": False, "error": error.name}
        self._gpu.cuda.call("cuMemFree", address)
        return {"room": True}


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        importer = Importer(stack)
        Port().serve({name: getattr(importer, name)
                      for name in ("start", "open", "copy", "copy_long", "close", "used", "has_room")})  # fmt: skip
