"""Which tensors may be captured after `step()` returned.

A *lazy* tensor changes only between an optimizer's pre-hook and its post-hook, so the copy may run beside the next
forward and backward pass; the gate holds the optimizer back until it is done. Everything else is *eager*, copied before
`step()` returns: lazily copied BatchNorm statistics, EMA copies and tensor learning rates are torn under perfect
checksums.

    parameter of an optimizer in `state`, requires_grad     lazy
    state tensor of such an optimizer                        lazy
    anything else                                            eager

`lazy(x)` and `eager(x)` overrule it for a tensor, a module or any nest of them; `lazy(x)` is the user's promise that x
changes only after `gate()`. Two views of one memory of which one is eager are both eager.
"""

from __future__ import annotations

import weakref
from typing import TypeVar

import torch

T = TypeVar("T")

_marks: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()
_tensor_marks: dict[int, tuple[weakref.ref[torch.Tensor], bool]] = {}  # by id: tensors compare by value


def lazy(x: T) -> T:
    """Marks x (tensor, module, dict, list or tuple of them) as changing only after `gate()`. Returns x."""
    return _mark(x, True)


def eager(x: T) -> T:
    """Marks x (tensor, module, dict, list or tuple of them) to be copied before `step()` returns. Returns x."""
    return _mark(x, False)


def _mark(x: T, is_lazy: bool) -> T:
    if isinstance(x, torch.Tensor):
        key = id(x)
        _tensor_marks[key] = (weakref.ref(x, lambda _: _tensor_marks.pop(key, None)), is_lazy)
    elif isinstance(x, torch.nn.Module):
        _marks[x] = is_lazy
    elif isinstance(x, dict):
        list(map(lambda item: _mark(item, is_lazy), x.values()))
    elif isinstance(x, (list, tuple)):
        list(map(lambda item: _mark(item, is_lazy), x))
    else:
        raise TypeError(f"ckptd.{'lazy' if is_lazy else 'eager'}: a {type(x).__name__} is no tensor and holds none")
    return x


def mark_of_tensor(tensor: torch.Tensor) -> bool | None:
    """True for lazy, False for eager, None when the user said nothing."""
    entry = _tensor_marks.get(id(tensor))
    return entry[1] if entry is not None and entry[0]() is tensor else None


def mark_of_module(module: torch.nn.Module) -> bool | None:
    """Mark of exactly this module; a walk hands it down to what the module holds."""
    return _marks.get(module)
