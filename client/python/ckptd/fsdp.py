"""FSDP: where the sharded parameters are, and when they are not there.

FSDP2 (`fully_shard`) puts DTensors into its modules, and plain unsharded parameters between a forward pass and the
backward pass that follows. FSDP1 keeps one flat tensor a wrapped module; with `use_orig_params=True` the module shows
pieces of this rank's shard of it, one-dimensional, empty where the rank has nothing of a parameter.
"""

from __future__ import annotations

from typing import Any

import torch

from .shards import Shard


def refuse_unsharded(module: torch.nn.Module, path: str) -> None:
    """TypeError, with what to do, while FSDP holds the parameters of `module` unsharded: they are not what it trains."""
    group = _group(module)
    if group is not None and not getattr(group, "is_sharded", True):
        raise TypeError(
            f"{path}: fully_shard holds its parameters unsharded (a forward pass without a backward pass does that); "
            "call step() right after optimizer.step(), or reshard() of each FSDPModule before it"
        )
    handle = _handle(module)
    if handle is not None and handle.uses_sharded_strategy and not handle.is_sharded(handle.flat_param):
        raise TypeError(
            f"{path}: FSDP holds its parameters unsharded (inside summon_full_params, or after a forward pass without "
            "a backward pass); call step() right after optimizer.step()"
        )


def _group(module: torch.nn.Module) -> Any:
    """FSDP2's group of parameters; None for other modules."""
    get = getattr(module, "_get_fsdp_state", None)
    return getattr(get(), "_fsdp_param_group", None) if get is not None else None


def _handle(module: torch.nn.Module) -> Any:
    """FSDP1's handle of a flat parameter; None for other modules."""
    handle = module.__dict__.get("_handle")
    return handle if hasattr(handle, "flat_param") and hasattr(handle, "uses_sharded_strategy") else None


def flat_shards(module: torch.nn.Module) -> dict[int, Shard]:
    """By id of the parameter: where it lies in FSDP1's flat tensor, or in the flattened original parameter."""
    handle = _handle(module)
    if handle is None or not handle.uses_sharded_strategy:
        return {}
    flat = handle.flat_param
    size = flat._sharded_size.numel()
    found = {id(flat): Shard((handle.rank * size,), (handle.world_size * size,))}
    for parameter, shape, info in zip(flat._params or (), flat._shapes, flat._shard_param_infos):
        whole = shape.numel()
        begin = info.intra_param_start_idx if info.in_shard else whole  # an empty shard lies at the end
        found[id(parameter)] = Shard((begin,), (whole,))
    return found
