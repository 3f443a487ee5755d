"""A child that measures: what the driver can copy, and what a save, a step beside a save and a restore take."""

from __future__ import annotations

import ctypes
import pathlib
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numa
import torch
from child import Port
from driver import Driver, Gpu
from model import Training
from peers import Peers
from sizes import Size
from ways import OURS, Ours, peers_of

_READY_SECONDS = 60.0
_CAPTURE_SECONDS = 60.0
_DURABLE_SECONDS = 300.0
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
_SETTLE = 3  # steps before anything is timed
_WARM = 2  # saves of a way before its windows
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
        prepared = self._prepare()
        for _ in range(_SETTLE):
            seconds = self._step()
        self._passes = max(1, round(window_seconds / seconds))
        first, *_ = (self._capture() for _ in range(_SETTLE))
        return {"torch": torch.__version__, "state_bytes": self._training.state_bytes(), "passes": self._passes,
                "prepare_seconds": prepared, "first_captured_seconds": first[1],
                "pinned_bytes": self._checkpointer._session.info().pinned_bytes,
                "pin_error": self._checkpointer._session.info().pin_error.decode()}  # fmt: skip

    def _open(self, path: str = "push") -> None:
        import ckptd

        ckptd.lazy(self._training.model)  # written after the gate of the optimizer's step
        self._checkpointer = ckptd.Checkpointer(
            self._training.state, job="bench", agent=self._socket, selfcheck="off", on_error="raise",
            gpu_path=path,
        )  # fmt: skip
        self._checkpointer.restore()
        self._way: Any = Ours(self._checkpointer, durable=False)

    def _prepare(self) -> float:
        """Waits for the agent's memory, which it makes once it has heard of the layout; seconds of it."""
        began = time.monotonic()
        self._checkpointer.step(self._n)
        deadline = began + _READY_SECONDS
        while not self._checkpointer._session.info().ready and time.monotonic() < deadline:
            time.sleep(0.005)
        return time.monotonic() - began

    def _step(self) -> float:
        """One step; seconds of it."""
        self._n += 1
        return self._training.timed_step(self._n - 1, self._passes)

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
        save, began = self._once_free(self._checkpointer.save)
        self._checkpointer.gate()
        self._training.synchronize()  # the stream waits for the copies
        copied = time.perf_counter() - began
        if not save.captured(_CAPTURE_SECONDS):
            raise RuntimeError(f"{save} is not captured within {_CAPTURE_SECONDS} s")
        return copied, time.perf_counter() - began

    def captures(self, rounds: int) -> dict[str, Any]:
        """Of the whole state."""
        copied, captured = zip(*(self._capture() for _ in range(rounds)), strict=True)
        return {"bytes": self._training.state_bytes(), "copied_seconds": copied, "captured_seconds": captured}

    def prepare(self, way: str, folder: str) -> dict[str, Any]:
        """The windows that follow save this way, onto the disk: one of ways.OURS, or of the peers. {skip}: it cannot be
        had here."""
        self._way.close()
        self._checkpointer.close(0)
        self._training.synchronize()
        if way not in OURS:
            made = peers_of(self._distinct(), folder, way)
            if isinstance(made, str):
                return {"skip": made}
            self._way = made
            self._warm()
            return {}
        path = way.split(", ")[1]
        if path == "pull" and not self._is_on_gpu():
            return {"skip": "pull needs state on a GPU"}
        self._open(path)
        self._prepare()
        why = self._await_path(path)
        self._way = Ours(self._checkpointer, durable=True)
        if why:
            return {"skip": why}
        self._warm()
        return {}

    def _warm(self) -> None:
        """Whole saves: they pay for what comes once, and nothing of an earlier way is still being written."""
        for _ in range(_WARM):
            self._once_free(self._way.save)
            self._way.gate()
            self._way.finish()
            self._way.remove()

    def _once_free(self, save: Callable[[int], Any]) -> tuple[Any, float]:
        """The save of the next step, tried until a slot is free; and when it began."""
        import ckptd

        deadline = time.monotonic() + _DURABLE_SECONDS
        while True:
            self._n += 1
            began = time.perf_counter()
            try:
                return save(self._n), began
            except ckptd.SaveError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def _is_on_gpu(self) -> bool:
        from ckptd import device

        return any(device.ordinal(tensor) != device.HOST for _, tensor in self._training.tensors())

    def _await_path(self, path: str) -> str:
        """Until the next save takes it; why it does not."""
        deadline = time.monotonic() + _READY_SECONDS
        while (info := self._checkpointer._session.info()).gpu_path != ("push", "pull").index(path):
            if time.monotonic() > deadline:
                return f"no {path} within {_READY_SECONDS:.0f} s: {info.path_why.decode()}"
            time.sleep(0.005)
        return ""

    def windows(self, count: int, seed: int, seconds: float | None = None) -> Iterator[dict[str, Any]]:
        """Steps of each kind, in threes of a drawn order; then {end}. seconds: no three begin later than that."""
        order = random.Random(seed)
        end = time.monotonic() + (math.inf if seconds is None else seconds)
        for _ in range(count):
            if time.monotonic() > end:
                break
            for kind in order.sample(KINDS, len(KINDS)):
                yield {"kind": kind, **self._window(kind == "save")}
        info = self._checkpointer._session.info() if self._checkpointer._session.alive else None
        yield {"end": True, "pulled": info.pulled if info else 0}

    def _window(self, saves: bool) -> dict[str, Any]:
        """From the end of a step to the end of the next one. The save begins with it, and its gate is within; what is
        left of it afterwards is waited for before another step begins."""
        watch = Stopwatch(self._device != "cpu")
        self._n += 1
        self._training.synchronize()
        began = time.perf_counter()
        if saves:
            self._way.save(self._n)
        else:
            self._way.step(self._n)
        stepped = time.perf_counter()
        for _ in range(self._passes):
            self._training.gradients(self._training.tokens(self._n))
        watch.begin()
        gating = time.perf_counter()
        self._way.gate()
        gated = time.perf_counter()
        watch.end()
        self._training.update()
        self._training.synchronize()
        ended = time.perf_counter()
        told = {"seconds": ended - began, "host_seconds": stepped - began + gated - gating,
                "gate_stream_seconds": watch.seconds()}  # fmt: skip
        if saves:
            self._way.finish()
            told["done_seconds"] = time.perf_counter() - began
            self._way.remove()
        return told

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
        yield from Peers(self._distinct(), pathlib.Path(folder)).save(way)

    def _distinct(self) -> dict[str, torch.Tensor]:
        """By name, each once."""
        distinct = {tensor.data_ptr(): (name, tensor) for name, tensor in self._training.tensors()}
        return dict(distinct.values())


def serve(bench: Bench) -> None:
    """Answers what the messages ask."""
    warnings.simplefilter("ignore")
    names = ("start", "limits", "captures", "prepare", "windows", "restore", "durable", "peer")
    Port().serve({name: getattr(bench, name) for name in names})


if __name__ == "__main__":
    serve(Bench())
