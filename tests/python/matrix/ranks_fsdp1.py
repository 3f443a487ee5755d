"""FSDP1 (`FullyShardedDataParallel`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

from .ranks import loop_of, net, rank_row
from .rows import Loop, loss_of, updating


def wrapped(model: nn.Module, **options: Any) -> nn.Module:
    """Two flat parameters: of one layer, and of the rest."""
    options.setdefault("use_orig_params", True)
    cpu = torch.device("cpu")
    model.first = FullyShardedDataParallel(model.first, device_id=cpu, **options)
    return FullyShardedDataParallel(model, device_id=cpu, **options)


def adamw(model: nn.Module) -> Loop:
    """The plain loop."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    return loop_of({"model": model, "optim": optimizer}, updating(model, optimizer))


@rank_row("FSDP1, use_orig_params=True", 2, "optimizer state", "gate", "generators", "whole modules")
def _original() -> Loop:
    return adamw(wrapped(net()))


@rank_row("FSDP1, use_orig_params=True, parameters without a piece here", 4, "optimizer state", "gate", "own rank")
def _original_four() -> Loop:
    return adamw(wrapped(net()))


@rank_row("FSDP1, use_orig_params=False", 2, "optimizer state", "gate", "own rank")
def _flat() -> Loop:
    return adamw(wrapped(net(), use_orig_params=False))


@rank_row("FSDP1, use_orig_params=False, mixed precision", 2, "optimizer state", "gate")
def _flat_mixed() -> Loop:
    return adamw(wrapped(net(), use_orig_params=False, mixed_precision=MixedPrecision(torch.bfloat16)))


@rank_row("FSDP1, use_orig_params=True, mixed precision", 2, "optimizer state", "gate")
def _original_mixed() -> Loop:
    return adamw(wrapped(net(), mixed_precision=MixedPrecision(torch.bfloat16)))


@rank_row("FSDP1, SHARD_GRAD_OP", 2, "optimizer state", "gate")
def _grad_op() -> Loop:
    return adamw(wrapped(net(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP))


@rank_row("FSDP1, NO_SHARD", 2, "optimizer state", "gate")
def _no_shard() -> Loop:
    return adamw(wrapped(net(), sharding_strategy=ShardingStrategy.NO_SHARD))


@rank_row("FSDP1, gradients clipped, accumulated with no_sync()", 2, "updates only")
def _accumulation() -> Loop:
    model = wrapped(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    count = [0]

    def train(batch: Any) -> torch.Tensor:
        count[0] += 1
        if count[0] % 2:
            with model.no_sync():
                loss = loss_of(model, batch)
                loss.backward()
            return loss
        loss = loss_of(model, batch)
        loss.backward()
        model.clip_grad_norm_(0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return loop_of({"model": model, "optim": optimizer, "count": count}, train)


@rank_row(
    "FSDP1, step() inside summon_full_params",
    2,
    refused="FSDP holds its parameters unsharded (inside summon_full_params, or after a forward pass without a "
    "backward pass); call step() right after optimizer.step()",
    note="the save is dropped, training goes on",
)
def _summoned() -> Loop:
    model = wrapped(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    step, open_contexts = updating(model, optimizer), []

    def train(batch: Any) -> torch.Tensor:
        while open_contexts:
            open_contexts.pop().__exit__(None, None, None)
        loss = step(batch)
        open_contexts.append(FullyShardedDataParallel.summon_full_params(model))
        open_contexts[0].__enter__()
        return loss

    return loop_of({"model": model, "optim": optimizer}, train)
