"""Any Python value as what a checkpoint can hold, for frameworks that save what their users give them.

Tensors, plain values, dicts, lists and tuples are stored as they are, readable without this package. A leaf that the
typed JSON or the format has no form for (a Path, a dtype, a sparse tensor, an object) becomes a uint8 tensor with the
bytes of `torch.save`, and comes back through `torch.load`: with weights_only it takes no object that torch refuses.
"""

from __future__ import annotations

import io
from collections import OrderedDict, defaultdict
from typing import Any

import numpy as np
import torch

from . import dtypes, extra, tree
from .memory import refuse_unsupported

_PICKLED, _DEVICE, _ATTRIBUTES = "__ckptd_torch_save__", "__ckptd_device__", "__ckptd_attributes__"


def packed(value: Any) -> Any:
    """`value` as a tree of tensors and plain values. Tensors of the CPU are not copied."""
    if isinstance(value, torch.Tensor):
        return _packed_tensor(value)
    kind = type(value)
    if kind in tree.MAPPINGS and _is_plain(list(value)) and _has_plain_factory(value):
        items = [(key, packed(item)) for key, item in value.items()]
        same = OrderedDict(items) if kind is OrderedDict else dict(items)
        if kind is defaultdict:
            same = defaultdict(value.default_factory, items)
        attributes = getattr(value, "__dict__", None)  # a state_dict has its versions in _metadata
        return {_ATTRIBUTES: [same, packed(attributes)]} if attributes else same
    if kind in (list, tuple):
        return kind(map(packed, value))
    if not tree.is_stateful(value) and _is_plain(value):
        return value
    return _pickled(value)


def _packed_tensor(tensor: torch.Tensor) -> Any:
    plain = tensor.detach()
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and plain.layout == torch.strided and not plain.is_quantized:
        if plain.device.type not in ("cpu", "meta"):
            return {_DEVICE: [str(plain.device), plain.cpu()]}
        try:
            refuse_unsupported(plain, "")
            dtypes.string_of(plain, "")
            return plain if type(tensor) is torch.Tensor and not tensor.requires_grad else _pickled_or(tensor, plain)
        except TypeError:
            pass
    return _pickled(tensor)


def _pickled_or(tensor: torch.Tensor, plain: torch.Tensor) -> Any:
    """A tensor with a gradient, or a Parameter: what it is goes beside its numbers."""
    return {_DEVICE: ["parameter" if isinstance(tensor, torch.nn.Parameter) else "leaf", plain, tensor.requires_grad]}


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject and value.dtype.kind in "biufc" and value.dtype.isnative
    try:
        extra.encode(value)
    except TypeError:
        return False
    return True


def _has_plain_factory(value: Any) -> bool:
    return type(value) is not defaultdict or _is_plain(defaultdict(value.default_factory))


def _pickled(value: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return {_PICKLED: torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)}


def unpacked(value: Any, map_location: Any = None, weights_only: bool | None = None) -> Any:
    """Inverse of `packed`; tensors own their memory. `value` is used up.

    map_location: a device, or a dict from saved to wanted devices; else the CPU. weights_only: of `torch.load`.
    """
    if isinstance(value, torch.Tensor):
        return _placed(value.clone(), "cpu", map_location)
    if isinstance(value, np.ndarray):
        return value.copy()
    kind = type(value)
    if kind is dict and len(value) == 1:
        (mark,) = value
        if mark == _PICKLED:
            more = {} if weights_only is None else {"weights_only": weights_only}
            data = io.BytesIO(value[mark].numpy().tobytes())
            return torch.load(data, map_location=map_location or "cpu", **more)
        if mark == _DEVICE:
            return _unpacked_tensor(*value[mark], map_location=map_location)
        if mark == _ATTRIBUTES:
            same, attributes = (unpacked(item, map_location, weights_only) for item in value[mark])
            vars(same).update(attributes)
            return same
    if kind in tree.MAPPINGS:
        for key in value:
            value[key] = unpacked(value[key], map_location, weights_only)
        return value
    if kind in (list, tuple):
        return kind(unpacked(item, map_location, weights_only) for item in value)
    return value


def _unpacked_tensor(what: str, plain: torch.Tensor, requires_grad: bool = False, map_location: Any = None) -> Any:
    if what not in ("parameter", "leaf"):
        return _placed(plain.clone(), what, map_location)
    tensor = _placed(plain.clone(), "cpu", map_location)
    return torch.nn.Parameter(tensor, requires_grad) if what == "parameter" else tensor.requires_grad_(requires_grad)


def _placed(tensor: torch.Tensor, saved: str, map_location: Any) -> torch.Tensor:
    wanted = map_location.get(saved) if isinstance(map_location, dict) else map_location
    return tensor.to(wanted) if isinstance(wanted, (str, int, torch.device)) else tensor
