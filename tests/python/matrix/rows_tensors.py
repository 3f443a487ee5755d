"""Rows about what kinds of tensors a state holds. Each is written before the optimizer's step, while a copy is open."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ckptd.dtypes import TO_TORCH
from torch import nn

from .rows import Loop, Net, loss_of, row, updating


def holding(held: Any, change: Callable[[torch.Tensor], Any]) -> Loop:
    """`held` is in the state beside a model; `change(loss)` writes to it."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(batch):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        change(loss.detach())
        optimizer.step()
        return loss

    return Loop({"model": model, "optim": optimizer, "held": held}, train)


def held_row(name: str, make: Callable[[], tuple[torch.Tensor, torch.Tensor]], *rules: str) -> None:
    """make: the tensor in the state, and the one that is written (itself, or what it is a view of)."""

    def build() -> Loop:
        tensor, base = make()
        return holding({"x": tensor}, lambda loss: base.add_(loss))

    build.__module__ = __name__
    row(name, *rules)(build)


def twice(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor, tensor


def of(base: torch.Tensor, view: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return view(base), base


held_row("a plain tensor", lambda: twice(torch.zeros(5)), "eager", "live containers")
held_row("0-dim tensors", lambda: twice(torch.zeros(())), "eager", "live containers")
held_row("strided views", lambda: of(torch.arange(8.0), lambda x: x[::2]), "staging", "live containers")
held_row("transposed views", lambda: of(torch.arange(12.0).reshape(3, 4), lambda x: x.t()), "staging")
held_row("expanded views", lambda: of(torch.arange(3.0).reshape(3, 1), lambda x: x.expand(3, 5)), "staging", "overlaps")
held_row("overlapping windows", lambda: of(torch.arange(6.0), lambda x: x.unfold(0, 3, 1)), "staging")
held_row("a slice of a larger tensor", lambda: of(torch.zeros(10), lambda x: x[3:7]), "eager", "live containers")
held_row("conjugated views", lambda: of(torch.randn(3, dtype=torch.complex64), lambda x: x.conj()), "staging")


@row("two views of one memory", "eager", "live containers")
def two_views() -> Loop:
    base = torch.zeros(8)
    return holding({"head": base[:5], "tail": base[3:]}, lambda loss: base.add_(loss))


@row("empty tensors", "gate")
def empty() -> Loop:
    held = {"none": torch.empty(0, 3), "flag": torch.empty(0, dtype=torch.bool)}
    return holding(held, lambda loss: None)


@row("every dtype of the format: bool, integers, floats, float8, complex64", "eager", "live containers")
def dtypes() -> Loop:
    held = {name: torch.zeros(24, dtype=torch.uint8).view(dtype) for name, dtype in TO_TORCH.items()}
    held["BOOL"] = torch.zeros(24, dtype=torch.bool)

    def change(loss: torch.Tensor) -> None:
        for name, tensor in held.items():
            noise = torch.randint(2 if name == "BOOL" else 256, (24,), dtype=torch.uint8)
            tensor.view(torch.uint8).bitwise_xor_(noise)

    return holding(held, change)


@row("complex64 parameters", "gate", "optimizer state")
def complex_parameters() -> Loop:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(16, 16, dtype=torch.complex64) * 0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.to(torch.complex64) @ self.weight).abs()

    model = Net(Complex())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row("float64 model", "gate")
def double() -> Loop:
    class Double(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.double())

    model = Double().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row("NumPy arrays", "live containers")
def arrays() -> Loop:
    held = {"a": np.zeros(4), "b": np.zeros((2, 3), dtype=np.int16)[:, ::2]}

    def change(loss: torch.Tensor) -> None:
        held["a"] += loss.item()
        held["b"] += 1

    return holding(held, change)


@row("generator objects of torch, NumPy and Python", "own generators")
def generators() -> Loop:
    held = {"torch": torch.Generator().manual_seed(1), "numpy": np.random.default_rng(1), "python": random.Random(1)}
    held["old numpy"] = np.random.RandomState(1)

    def change(loss: torch.Tensor) -> None:
        torch.rand(3, generator=held["torch"])
        held["numpy"].random()
        held["python"].gauss(0, 1)
        held["old numpy"].standard_normal()

    return holding(held, change)


@row("plain values: counters, tuples, sets, bytes, None, nan", "live containers")
def plain_values() -> Loop:
    held: dict[Any, Any] = {"log": [], 7: (1, None), "seen": set(), "best": float("inf"), "raw": b""}

    def change(loss: torch.Tensor) -> None:
        held["log"].append(loss.item())
        held["seen"].add(round(loss.item(), 3))
        held["best"] = min(held["best"], loss.item())
        held[7] = (held[7][0] + 1, float("nan"))
        held["raw"] += bytes([len(held["log"])])

    return holding(held, change)


@row("channels_last convolutions", "staging")
def channels_last() -> Loop:
    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 2).to(memory_format=torch.channels_last)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x.reshape(-1, 2, 2, 2)).flatten(1)

    model = Convolution()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


def flattened(model: nn.Module) -> torch.Tensor:
    """All parameters in one run of memory, as apex and FSDP1 lay them."""
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    begin = 0
    for p in model.parameters():
        p.data = flat[begin : begin + p.numel()].view(p.shape)
        begin += p.numel()
    return flat


@row("parameters that are views of one flat buffer", "gate")
def flat_parameters() -> Loop:
    model = Net()
    flattened(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row("the flat buffer in the state too, and written directly", "eager views")
def flat_buffer() -> Loop:
    model = Net()
    flat = flattened(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(batch):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        flat.mul_(0.999)
        optimizer.step()
        return loss

    return Loop({"model": model, "optim": optimizer, "flat": {"all": flat}}, train)


def refused(name: str, make: Callable[[], Any], sentence: str) -> None:
    """A row that ckptd does not take."""

    def build() -> Loop:
        return holding({"x": make()}, lambda loss: None)

    build.__module__ = __name__
    row(name, refused=sentence)(build)


refused(
    "complex128", lambda: torch.zeros(1, dtype=torch.complex128),
    "held.x: torch.complex128 is no dtype of the safetensors format; view it as one that is",
)  # fmt: skip
refused(
    "sparse tensors", lambda: torch.eye(2).to_sparse(),
    "held.x: a torch.sparse_coo or quantized tensor cannot be saved; convert it to a dense one",
)  # fmt: skip
refused(
    "tensors on the meta device", lambda: torch.zeros(2, device="meta"),
    "held.x: it lives on meta; host memory and CUDA devices are captured",
)  # fmt: skip
class Wrapped(torch.Tensor):
    """As quantized and distributed tensors are: memory in another tensor."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*(item.inner if isinstance(item, Wrapped) else item for item in args), **(kwargs or {}))


refused(
    "wrapper subclasses", lambda: Wrapped(torch.zeros(2)),
    "held.x: a Wrapped wraps other tensors and has no __tensor_flatten__; put what it wraps into `state`",
)  # fmt: skip
refused(
    "a deque (replay buffers)", lambda: deque([1]),
    "held.x: a collections.deque cannot be saved; convert it to a tensor or a plain value",
)  # fmt: skip
refused(
    "functions and other objects", lambda: print,
    "held.x: a builtins.builtin_function_or_method cannot be saved; convert it to a tensor or a plain value",
)  # fmt: skip
