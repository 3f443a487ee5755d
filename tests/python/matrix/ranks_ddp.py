"""DistributedDataParallel and ZeroRedundancyOptimizer."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from .ranks import loop_of, net, rank_row
from .rows import Loop, loss_of, updating


def wrapped(**options: Any) -> nn.Module:
    """A model with BatchNorm statistics, which differ by rank unless DDP copies those of rank 0."""
    return DistributedDataParallel(net(nn.BatchNorm1d(16)), **options)


def adamw(model: nn.Module, state: Any = None, **more: Any) -> Loop:
    """The plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return loop_of({"model": model, "optim": optimizer}, updating(model, optimizer), **more)


@rank_row("DDP, BatchNorm", 2, "optimizer state", "gate", "eager", "generators", "everything")
def _plain() -> Loop:
    return adamw(wrapped())


@rank_row("DDP, BatchNorm statistics of each rank", 2, "optimizer state", "gate", "eager", "own rank")
def _own_buffers() -> Loop:
    return adamw(wrapped(broadcast_buffers=False))


@rank_row(
    "DDP, a forward and a backward pass before restore()",
    4,
    "optimizer state",
    "gate",
    "own rank",
    note="more than two ranks: DDP sorts its buckets anew after the first backward pass of a process, and sums of "
    "three numbers depend on their order",
)
def _rebuilt_buckets() -> Loop:
    model = wrapped(broadcast_buffers=False)
    loop = adamw(model)

    def rebuild() -> None:
        model(torch.randn(4, 8)).sum().backward()
        model.zero_grad()

    loop.resumed = rebuild
    return loop


@rank_row("DDP, find_unused_parameters=True (buckets as they are)", 4, "optimizer state", "gate", "own rank")
def _buckets_stay() -> Loop:
    return adamw(wrapped(broadcast_buffers=False, find_unused_parameters=True))


@rank_row("DDP, saved wrapped, restored bare", 2, "canonical names")
def _unwrapped() -> Loop:
    model = wrapped()
    loop = adamw(model)

    def bare() -> None:
        loop.state["model"] = model.module

    loop.resumed = bare
    return loop


@rank_row("DDP, gradient as bucket view, static graph", 2, "optimizer state", "gate")
def _bucket_views() -> Loop:
    return adamw(wrapped(gradient_as_bucket_view=True, static_graph=True))


@rank_row("DDP, gradient accumulation with no_sync()", 2, "updates only")
def _accumulation() -> Loop:
    model = wrapped()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    count = [0]

    def train(batch: Any) -> torch.Tensor:
        count[0] += 1
        last = count[0] % 2 == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = loss_of(model, batch)
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return loop_of({"model": model, "optim": optimizer, "count": count}, train)


def zero(inner_too: bool) -> Loop:
    """Each rank has the optimizer state of a part of the parameters."""
    model = wrapped()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.02)
    inner = {"inner": optimizer.optim} if inner_too else {}
    return loop_of({"model": model, "optim": optimizer, **inner}, updating(model, optimizer))


@rank_row("DDP, ZeroRedundancyOptimizer, its .optim given too", 2, "optimizer state", "gate", "own rank")
def _zero() -> Loop:
    return zero(True)


@rank_row(
    "DDP, ZeroRedundancyOptimizer alone",
    2,
    refused="optim: a ZeroRedundancyOptimizer holds another optimizer in .optim, whose state would be lost; put that "
    "one (AdamW) into `state` as well",
)
def _zero_alone() -> Loop:
    return zero(False)
