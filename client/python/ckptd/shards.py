"""Tensors that wrap other tensors, as the plain tensors inside them, and where a shard lies in the whole.

A `DTensor` (FSDP2, tensor parallelism) is captured as this rank's local tensor, under its own name, with the offsets
that other readers of the image need; no copy, no collective. Other wrapper subclasses are captured as the tensors that
their `__tensor_flatten__` names, ``name.attribute`` each. What is inside is found again at every save by C loops over
a block of tensors: no Python statement a tensor.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from . import names


class Shard(NamedTuple):
    """Where a tensor lies in the whole one: offsets, and shape of the whole, one number a dimension."""

    offsets: tuple[int, ...]
    whole: tuple[int, ...]


class Leaf(NamedTuple):
    """A plain tensor inside another one, or that one itself. `path`: dotted attributes that lead to it, or empty."""

    name: str
    tensor: torch.Tensor
    lazy: bool
    path: str
    shard: Shard | None


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether its elements are not in its own memory."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def is_dtensor(tensor: Any) -> bool:
    """Whether it is a DTensor."""
    kind = getattr(_module(), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def _module() -> Any:
    """Where DTensor is defined, or None. Who has a DTensor has imported it; we do not."""
    return sys.modules.get("torch.distributed.tensor") or sys.modules.get("torch.distributed._tensor")


def leaves(name: str, tensor: torch.Tensor, lazy: bool = False, shard: Shard | None = None) -> list[Leaf]:
    """The plain tensors of `tensor`. shard: of a plain one. TypeError, naming it, for what cannot be taken apart."""
    if not is_wrapper(tensor):
        return [Leaf(name, tensor, lazy, "", shard)]
    if is_dtensor(tensor):
        return [Leaf(name, _plain_local(name, tensor), lazy, "_local_tensor", place(name, tensor))]
    kind = type(tensor).__name__
    if not hasattr(tensor, "__tensor_flatten__"):
        raise TypeError(
            f"{name}: a {kind} wraps other tensors and has no __tensor_flatten__; put what it wraps into `state`"
        )
    found = []
    for attribute in tensor.__tensor_flatten__()[0]:
        for leaf in leaves(names.join(name, attribute), getattr(tensor, attribute), lazy):
            found.append(leaf._replace(path=names.join(attribute, leaf.path)))
    return found


def _plain_local(name: str, tensor: Any) -> torch.Tensor:
    local = tensor._local_tensor
    if is_wrapper(local):
        raise TypeError(f"{name}: a DTensor of {type(local).__name__}s cannot be saved; use plain local tensors")
    return local


def place(name: str, tensor: Any) -> Shard:
    """Where the local tensor of a DTensor lies. TypeError for placements that are no single box of the whole."""
    if tensor.device_mesh.get_coordinate() is None:
        raise TypeError(f"{name}: this rank is not in its device mesh; leave it out of `state` here")
    for index, placement in enumerate(tensor.placements):
        if not _cuts_a_box(tensor, index):
            raise TypeError(
                f"{name}: its placement {placement} is no box of the whole tensor; redistribute it to Shard or "
                "Replicate, or leave it out of `state`"
            )
    shape, offsets = _box(list(tensor.shape), tensor.placements, tensor.device_mesh)
    if tuple(tensor._local_tensor.shape) != tuple(shape):
        raise TypeError(
            f"{name}: its local shape is {list(tensor._local_tensor.shape)} where its placements give {shape}; "
            "distribute it evenly"
        )
    return Shard(tuple(offsets), tuple(tensor.shape))


def _cuts_a_box(tensor: Any, index: int) -> bool:
    """Shard, Replicate, or the `_StridedShard` of FSDP over tensor parallelism: it cuts what the later ones left."""
    placement = tensor.placements[index]
    if type(placement).__name__ != "_StridedShard":
        return type(placement).__name__ in ("Shard", "Replicate")
    later = [
        tensor.device_mesh.size(other)
        for other in range(index + 1, len(tensor.placements))
        if getattr(tensor.placements[other], "dim", None) == placement.dim
    ]
    return placement.split_factor == math.prod(later)


def _box(shape: list[int], placements: Sequence[Any], mesh: Any) -> tuple[list[int], list[int]]:
    """Shape and offsets of this rank's box of a tensor of `shape`.

    As torch has it: each mesh dimension cuts what the ones before it left into equal chunks, the last ones shorter or
    empty; strided ones come after the others, from the last to the first. An empty shard lies at the end.
    """
    sizes, offsets = list(shape), [0] * len(shape)
    cuts = [index for index, placement in enumerate(placements) if getattr(placement, "dim", None) is not None]
    strided = [index for index in cuts if hasattr(placements[index], "split_factor")]
    for index in [index for index in cuts if index not in strided] + strided[::-1]:
        dimension = placements[index].dim
        chunk = -(-sizes[dimension] // mesh.size(index))
        begin = min(mesh.get_coordinate()[index] * chunk, sizes[dimension])
        sizes[dimension] = min(chunk, sizes[dimension] - begin)
        offsets[dimension] += begin
    return sizes, offsets


class Block:
    """A few hundred tensors in a row. rows: each with name, tensor, lazy and shard."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.count = len(rows)
        each = [leaves(row.name, row.tensor, row.lazy, row.shard) for row in rows]
        paths = sorted({leaf.path for found in each for leaf in found})
        self.leaves = [leaf for path in paths for found in each for leaf in found if leaf.path == path]
        has = {path: [any(leaf.path == path for leaf in found) for found in each] for path in paths}
        self._plain = has.pop("", [])
        self._getters = [(attrgetter(path), mask) for path, mask in has.items()]

    def inside(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The plain tensors of the same rows now, in the order of `leaves`."""
        if not self._getters:
            return tensors
        found = list(compress(tensors, self._plain))
        for getter, mask in self._getters:
            found += map(getter, compress(tensors, mask))
        return found


Spec = list[Any]  # [global shape, placements as text]: JSON


def spec(tensor: Any) -> Spec:
    """What it takes to make a DTensor like it on the same mesh."""
    return [list(tensor.shape), [str(placement) for placement in tensor.placements]]


def new_on_mesh_of(parameter: Any, wanted: Spec, dtype: torch.dtype) -> Any:
    """A DTensor as `wanted` says on the mesh of the DTensor `parameter`. Its elements are not set.

    ValueError for placements that are not known here.
    """
    shape, texts = wanted
    mesh, local, kinds = parameter.device_mesh, parameter._local_tensor, _module()
    known = {str(placement): placement for placement in _plain_placements(kinds, len(shape))}
    known.update((str(placement), placement) for placement in parameter.placements)
    if not known.keys() >= set(texts):
        raise ValueError(f"placements {', '.join(texts)} are not known here")
    placements = [known[text] for text in texts]
    if wanted == spec(parameter):
        memory, stride = torch.empty_like(local, dtype=dtype, requires_grad=False), parameter.stride()
    else:
        memory = torch.empty(_box(shape, placements, mesh)[0], dtype=dtype, device=local.device)
        stride = torch.empty(shape, device="meta").stride()
    whole = torch.Size(shape)
    return kinds.DTensor.from_local(memory, mesh, placements, run_check=False, shape=whole, stride=stride)


def _plain_placements(kinds: Any, dimensions: int) -> list[Any]:
    return [kinds.Replicate(), *(kinds.Shard(dimension) for dimension in range(dimensions))]
