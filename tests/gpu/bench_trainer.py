"""A child that measures: what the driver can copy, and what a save, a step beside a save and a restore take."""

from __future__ import annotations

import ctypes
import pathlib
import random
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numa
import torch
from child import Port
from driver import Driver, Gpu
from model import Training
from peers import Peers
from sizes import Size

_READY_SECONDS = 60.0
_CAPTURE_SECONDS = 60.0
_DURABLE_SECONDS = 300.0
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
_SETTLE = 3  # steps before anything is timed
KINDS = ("save", "without", "again")  # of a window: with a save; without; without, to compare it with itself


class Stopwatch:
    """What lies between `begin` and `end`: on the stream where there is one, else nothing."""

    def __init__(self, on_gpu: bool) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if on_gpu else []

    def begin(self) -> None:
        for event in self._events[:1]:
            event.record()

    def end(self) -> None:
        for event in self._events[1:]:
            event.record()

    def seconds(self) -> float | None:
        """After a synchronization; None without a stream."""
        return self._events[0].elapsed_time(self._events[1]) / 1e3 if self._events else None


def _copy_all(gpu: Gpu, out: bool, on_device: int, blocks: list[int], size: int) -> float:
    """Seconds."""
    began = time.perf_counter()
    for host in blocks:
        if out:
            gpu.copy_out(host, on_device, size)
        else:
            gpu.copy_in(on_device, host, size)
    gpu.synchronize()
    return time.perf_counter() - began


class Bench:
    """What the messages ask."""

    def start(
        self, size: dict[str, int], device: str, socket: str, region: str, window_seconds: float
    ) -> dict[str, Any]:
        """Builds, trains until everything is warm, and waits for the agent's memory. window_seconds: of forward and
        backward passes in a step, about; so many are accumulated."""
        if device == "cuda" and not torch.cuda.is_available():
            return {"skip": "torch sees no GPU"}
        self._device, self._socket, self._region = device, socket, pathlib.Path(region)
        self._training = Training(Size(**size), device, exact=False)
        self._passes, self._n = 1, 0
        self._open()
        self._step()
        self._prepare()
        for _ in range(_SETTLE):
            seconds = self._step()
        self._passes = max(1, round(window_seconds / seconds))
        for _ in range(_SETTLE):
            self._capture()
        return {"torch": torch.__version__, "state_bytes": self._training.state_bytes(), "passes": self._passes,
                "pinned_bytes": self._checkpointer._session.info().pinned_bytes,
                "pin_error": self._checkpointer._session.info().pin_error.decode()}  # fmt: skip

    def _open(self) -> None:
        import ckptd

        ckptd.lazy(self._training.model)  # written after the gate of the optimizer's step
        self._checkpointer = ckptd.Checkpointer(
            self._training.state, job="bench", agent=self._socket, selfcheck="off", on_error="raise"
        )
        self._checkpointer.restore()

    def _prepare(self) -> None:
        """Waits for the agent's memory, which it makes once it has heard of the layout."""
        self._checkpointer.step(self._n)
        deadline = time.monotonic() + _READY_SECONDS
        while not self._checkpointer._session.info().ready and time.monotonic() < deadline:
            time.sleep(0.005)

    def _step(self) -> float:
        """One step; seconds of it."""
        began = time.perf_counter()
        for _ in range(self._passes):
            self._training.gradients(self._training.tokens(self._n))
        self._training.update()
        self._n += 1
        self._training.synchronize()
        return time.perf_counter() - began

    def limits(self, block: int, count: int, rounds: int) -> dict[str, Any]:
        """Rates of copies, out and in, between a block of the GPU's memory and `count` blocks of pinned memory, which
        lie on the region's node."""
        pages = numa.pages_under(self._region)
        node = max(pages, key=pages.__getitem__) if pages else None
        with Gpu(Driver()) as gpu:
            on_device = gpu.cuda.ask("cuMemAlloc", ctypes.c_uint64, block)
            preferred = node is not None and numa.prefer(node)
            blocks = [gpu.cuda.ask("cuMemHostAlloc", ctypes.c_void_p, block, _PORTABLE) for _ in range(count)]
            numa.prefer(None)
            rates = [
                [block * count / _copy_all(gpu, out, on_device, blocks, block) for _ in range(rounds)]
                for out in (True, False)
            ]
            nodes = sorted({numa.node_of(host) for host in blocks} - {None})
            for host in blocks:
                gpu.cuda.call("cuMemFreeHost", host)
            gpu.cuda.call("cuMemFree", on_device)
        told = {"region_pages_by_node": pages, "limit_nodes": nodes, "preferred": preferred}
        return {"out": rates[0], "in": rates[1], **told}

    def _capture(self) -> tuple[float, float]:
        """Seconds until the copies are done, and until the step is captured, with nothing else on the GPU."""
        self._training.synchronize()
        self._n += 1
        began = time.perf_counter()
        save = self._checkpointer.save(self._n)
        self._checkpointer._gate_host()
        copied = time.perf_counter() - began
        if not save.captured(_CAPTURE_SECONDS):
            raise RuntimeError(f"{save} is not captured within {_CAPTURE_SECONDS} s")
        return copied, time.perf_counter() - began

    def captures(self, rounds: int) -> dict[str, Any]:
        """Of the whole state."""
        copied, captured = zip(*(self._capture() for _ in range(rounds)), strict=True)
        return {"bytes": self._training.state_bytes(), "copied_seconds": copied, "captured_seconds": captured}

    def windows(self, count: int, seed: int) -> Iterator[dict[str, Any]]:
        """Steps of each kind, in threes of a drawn order."""
        order = random.Random(seed)
        for _ in range(count):
            for kind in order.sample(KINDS, len(KINDS)):
                yield {"kind": kind, **self._window(kind == "save")}

    def _window(self, saves: bool) -> dict[str, Any]:
        """From the end of a step to the end of the next one. The save begins with it, and its gate is within."""
        watch = Stopwatch(self._device != "cpu")
        save = None
        self._n += 1
        self._training.synchronize()
        began = time.perf_counter()
        if saves:
            save = self._checkpointer.save(self._n)
        else:
            self._checkpointer.step(self._n)
        stepped = time.perf_counter()
        for _ in range(self._passes):
            self._training.gradients(self._training.tokens(self._n))
        watch.begin()
        gating = time.perf_counter()
        self._checkpointer.gate()
        gated = time.perf_counter()
        watch.end()
        self._training.update()
        self._training.synchronize()
        ended = time.perf_counter()
        if save is not None and not save.captured(_CAPTURE_SECONDS):
            raise RuntimeError(f"{save} is not captured within {_CAPTURE_SECONDS} s")
        on_host = stepped - began + gated - gating
        return {"seconds": ended - began, "host_seconds": on_host, "gate_stream_seconds": watch.seconds()}

    def restore(self, rounds: int) -> dict[str, Any]:
        """The newest snapshot, which is captured, into the same tensors, by new checkpointers."""
        seconds, sources = [], set()
        for _ in range(rounds):
            self._checkpointer.close(0)
            self._open()
            self._prepare()
            seconds.append(self._checkpointer.restored.seconds)
            sources.add(self._checkpointer.restored.source)
        return {"bytes": self._training.state_bytes(), "seconds": seconds, "sources": sorted(sources)}

    def durable(self) -> Iterator[dict[str, Any]]:
        """A save of ours as the peers do theirs: {blocked_seconds}, then {done_seconds} on storage."""
        self._checkpointer.gate()
        self._n += 1
        self._training.synchronize()
        began = time.perf_counter()
        save = self._checkpointer.save(self._n)
        yield {"blocked_seconds": time.perf_counter() - began}
        if not save.durable(_DURABLE_SECONDS):
            raise RuntimeError(f"{save} is not durable within {_DURABLE_SECONDS} s")
        yield {"done_seconds": time.perf_counter() - began}

    def peer(self, way: str, folder: str) -> Iterator[dict[str, Any]]:
        """The same state by what people use today: {blocked_seconds}, then {done_seconds}; or {skip}."""
        self._training.synchronize()
        distinct = {tensor.data_ptr(): (name, tensor) for name, tensor in self._training.tensors()}
        yield from Peers(dict(distinct.values()), pathlib.Path(folder)).save(way)


def serve(bench: Bench) -> None:
    """Answers what the messages ask."""
    warnings.simplefilter("ignore")
    names = ("start", "limits", "captures", "windows", "restore", "durable", "peer")
    Port().serve({name: getattr(bench, name) for name in names})


if __name__ == "__main__":
    serve(Bench())
