"""A child that trains model.GPT beside copies out of the GPU and threads that read memory; no ckptd."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import c_uint64
from typing import Any

import numpy
import torch
from child import Port
from driver import PORTABLE, Driver, Gpu, address_of
from model import Training
from sizes import Size

_RANGE = 256 << 20  # pinned in one call; no copy crosses it
_THREADS = 8
_SETTLE = 5
_MIB = 1 << 20
_PIECES = {"copies of 4 MiB": 4 * _MIB, "copies of 64 MiB": 64 * _MIB, "copies and sums": 16 * _MIB}
_SUMS = ("sums", "copies and sums")
_HALF_SPEED = "copies at half speed"
_HALF = 25e9  # bytes a second: half of what the bus does


class Contention:
    """What the messages ask."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._going: list[Future[Any]] = []
        self._n = self._released = 0

    def start(self, size: dict[str, int], bytes: int, window_seconds: float) -> dict[str, Any]:
        """Trains until it is warm. bytes: copied beside a step, out of memory of their own."""
        if not torch.cuda.is_available():
            return {"skip": "torch sees no GPU"}
        self._training = Training(Size(**size), "cuda", exact=False)
        self._passes = 1
        self._step()
        self._bytes = (bytes + _RANGE - 1) // _RANGE * _RANGE
        self._gpu = Gpu(Driver())
        self._source = self._gpu.cuda.ask("cuMemAlloc", c_uint64, self._bytes)
        self._slot = self._pinned(self._bytes)
        self._word = self._pinned(mmap.PAGESIZE)
        self._words = numpy.frombuffer(self._slot, dtype=numpy.uint64)
        self._pool = self._stack.enter_context(ThreadPoolExecutor(_THREADS + 1))
        seconds = [self._step() for _ in range(_SETTLE)][-1]
        self._passes = max(1, round(window_seconds / seconds))
        return {"torch": torch.__version__, "bytes": self._bytes, "passes": self._passes, "threads": _THREADS}

    def _pinned(self, size: int) -> mmap.mmap:
        """Pages of tmpfs memory, as those of a slot, in ranges as ckptd pins them."""
        fd = os.memfd_create("ckptd-gpu-test")
        os.posix_fallocate(fd, 0, size)
        memory = mmap.mmap(fd, size)
        os.close(fd)
        memory[:: mmap.PAGESIZE] = b"x" * (size // mmap.PAGESIZE)
        base = address_of(memory)
        for at in range(0, size, _RANGE):
            length = min(_RANGE, size - at)
            self._gpu.cuda.call("cuMemHostRegister", base + at, length, PORTABLE)
            self._stack.callback(self._gpu.cuda.code, "cuMemHostUnregister", base + at)
        return memory

    def windows(self, kinds: list[str], count: int, seed: int, seconds: float) -> Iterator[dict[str, Any]]:
        """Steps of each kind, in a drawn order each time; then {end}."""
        order, end = random.Random(seed), time.monotonic() + seconds
        for _ in range(count):
            if time.monotonic() > end:
                break
            for kind in order.sample(kinds, len(kinds)):
                yield {"kind": kind, "seconds": self._window(kind)}
        yield {"end": True}

    def _window(self, kind: str) -> float:
        self._training.synchronize()
        if kind in _PIECES:
            self._enqueue(_PIECES[kind])
        began = time.perf_counter()
        self._begin(kind)
        self._step()
        taken = time.perf_counter() - began
        for going in self._going:
            going.result()
        self._going.clear()
        self._gpu.synchronize()
        return taken

    # Behind a word that the host stores when the step begins: the calls themselves cost the step nothing.
    def _enqueue(self, piece: int) -> None:
        self._released += 1
        self._gpu.wait_value(address_of(self._word), self._released)
        for at in range(0, self._bytes, piece):
            self._gpu.copy_out(address_of(self._slot) + at, self._source + at, piece)

    def _begin(self, kind: str) -> None:
        if kind in _PIECES:
            ctypes.c_uint64.from_buffer(self._word).value = self._released
        if kind == _HALF_SPEED:
            self._going.append(self._pool.submit(self._copy_slowly))
        if kind in _SUMS:
            share = len(self._words) // _THREADS
            parts = [self._words[at : at + share] for at in range(0, share * _THREADS, share)]
            self._going += [self._pool.submit(numpy.add.reduce, part) for part in parts]

    def _copy_slowly(self) -> None:
        """In a thread: 16 MiB at a time."""
        self._gpu.make_current()
        began, piece = time.perf_counter(), 16 * _MIB
        pause = threading.Event()
        for at in range(0, self._bytes, piece):
            self._gpu.copy_out(address_of(self._slot) + at, self._source + at, piece)
            pause.wait(max(0.0, began + (at + piece) / _HALF - time.perf_counter()))

    def _step(self) -> float:
        self._n += 1
        return self._training.timed_step(self._n - 1, self._passes)


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        asked = Contention(stack)
        Port().serve({"start": asked.start, "windows": asked.windows})
