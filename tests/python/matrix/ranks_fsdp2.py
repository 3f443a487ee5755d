"""FSDP2 (`fully_shard`) and other DTensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from .ranks import loop_of, net, rank_row
from .rows import Loop, loss_of, updating


def mesh(*shape: int) -> Any:
    """Over all ranks; one dimension unless `shape` says otherwise."""
    shape = shape or (dist.get_world_size(),)
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])


def sharded(model: nn.Module, on: Any = None, **options: Any) -> nn.Module:
    """Each layer a group of its own, and the rest."""
    on = on or mesh()
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=on, **options)
    return fully_shard(model, mesh=on, **options)


def adamw(model: nn.Module, **options: Any) -> Loop:
    """The plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, **options)
    return loop_of({"model": model, "optim": optimizer}, updating(model, optimizer))


@rank_row("fully_shard, AdamW", 2, "local shards", "state as DTensors", "optimizer state", "gate", "generators")
def _adamw() -> Loop:
    return adamw(sharded(net()))


@rank_row("fully_shard, AdamW, uneven and empty shards", 4, "local shards", "state as DTensors", "own rank", "gate")
def _uneven() -> Loop:
    return adamw(sharded(net()))


@rank_row("fully_shard, SGD with momentum, gradients clipped", 4, "local shards", "state as DTensors")
def _clipped() -> Loop:
    model = sharded(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def train(batch: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return loss

    return loop_of({"model": model, "optim": optimizer}, train)


@rank_row("fully_shard, reshard_after_forward=False", 2, "local shards", "state as DTensors", "gate")
def _no_reshard() -> Loop:
    return adamw(sharded(net(), reshard_after_forward=False))


@rank_row("fully_shard, mixed precision", 2, "local shards", "state as DTensors", "gate")
def _mixed() -> Loop:
    return adamw(sharded(net(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)))


@rank_row("fully_shard, CPU offload policy", 2, "local shards", "state as DTensors", "gate")
def _offload() -> Loop:
    return adamw(sharded(net(), offload_policy=CPUOffloadPolicy(pin_memory=False)))


@rank_row("fully_shard, two replicas of two shards (HSDP)", 4, "local shards", "state as DTensors", "generators")
def _hybrid() -> Loop:
    return adamw(sharded(net(), mesh(2, 2)))


@rank_row("fully_shard, fused AdamW", 2, "local shards", "state as DTensors", "gate")
def _fused() -> Loop:
    return adamw(sharded(net()), fused=True)


@rank_row("fully_shard, gradient accumulation without synchronization", 2, "local shards", "updates only")
def _accumulation() -> Loop:
    model = sharded(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    count = [0]

    def train(batch: Any) -> torch.Tensor:
        count[0] += 1
        last = count[0] % 2 == 0
        model.set_requires_gradient_sync(last)
        loss = loss_of(model, batch)
        loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return loop_of({"model": model, "optim": optimizer, "count": count}, train)


def with_ema(update: Any) -> Loop:
    """A model and the moving average of its shards, in a dict."""
    model = sharded(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    ema = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    step = updating(model, optimizer)

    def train(batch: Any) -> torch.Tensor:
        for name, parameter in model.named_parameters():
            update(ema, name, parameter.detach())
        return step(batch)

    return loop_of({"model": model, "optim": optimizer, "ema": ema}, train)


@rank_row("fully_shard, EMA of the shards", 2, "local shards", "eager", "everything")
def _ema() -> Loop:
    return with_ema(lambda ema, name, parameter: ema[name].lerp_(parameter, 0.1))


@rank_row("fully_shard, EMA that makes new tensors each step", 2, "local shards")
def _new_ema() -> Loop:
    return with_ema(lambda ema, name, parameter: ema.update({name: 0.9 * ema[name] + 0.1 * parameter}))


def evaluating(reshard: bool) -> Loop:
    """An evaluation, which leaves parameters unsharded, after the update and before `step()`."""
    model = sharded(net(), reshard_after_forward=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    step = updating(model, optimizer)

    def train(batch: Any) -> torch.Tensor:
        loss = step(batch)
        with torch.no_grad():
            found = loss_of(model, batch)
        for module in model.modules() if reshard else ():
            if isinstance(module, FSDPModule):
                module.reshard()
        return loss.detach() + found

    return loop_of({"model": model, "optim": optimizer}, train)


@rank_row("fully_shard, evaluation before step(), reshard() after it", 2, "local shards", "state as DTensors")
def _evaluation() -> Loop:
    return evaluating(True)


@rank_row(
    "fully_shard, evaluation that leaves parameters unsharded before step()",
    2,
    refused="fully_shard holds its parameters unsharded (a forward pass without a backward pass does that); call "
    "step() right after optimizer.step(), or reshard() of each FSDPModule before it",
    note="the save is dropped, training goes on",
)
def _unsharded() -> Loop:
    return evaluating(False)


@rank_row("fully_shard over tensor parallelism", 4, "local shards", "state as DTensors", "gate", "own rank")
def _tensor_parallel() -> Loop:
    on = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    fully_shard(parallelize_module(model, on["tensor"], plan), mesh=on["data"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return loop_of({"model": model, "optim": optimizer}, updating(model, optimizer), same_data=2)


@rank_row("DTensors of any placement in a dict", 4, "local shards", "eager", "own rank")
def _placements() -> Loop:
    on = mesh(2, 2)
    whole = torch.arange(30.0).reshape(5, 6)
    held = {
        f"{first}{second}": distribute_tensor(whole, on, [first, second])
        for first in (Shard(0), Shard(1), Replicate())
        for second in (Shard(0), Shard(1), Replicate())
    }
    linear = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    step = updating(linear, optimizer)

    def train(batch: Any) -> torch.Tensor:
        for tensor in held.values():
            tensor._local_tensor.add_(dist.get_rank() + 1)
        return step(batch) + sum(tensor._local_tensor.sum() for tensor in held.values()).detach()

    return loop_of({"model": linear, "optim": optimizer, "held": held}, train)


@rank_row("a DTensor with a partial placement", 2, refused="held.x: its placement P(sum) is no box of the whole tensor")
def _partial() -> Loop:
    partial = DTensor.from_local(torch.ones(3), mesh(), [Partial()])
    linear = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    return loop_of({"model": linear, "optim": optimizer, "held": {"x": partial}}, updating(linear, optimizer))
