"""Nested plain values with tensors in them: taken apart for a save, put together at a restore.

`flatten` replaces every tensor by a reference to its name and every stateful object by a reference to its path; what is
left is what the typed JSON of `extra` holds. `rebuild` is the way back, and `write_back` changes live dicts and lists
in place, since the training loop holds on to them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from typing import Any, Callable

import numpy as np
import torch

from . import dtypes, extra, names, rng
from .extra import ObjectRef, TensorRef
from .shards import is_wrapper

MAPPINGS = (dict, OrderedDict, defaultdict)
PLAIN = frozenset((str, int, float, bool, type(None)))  # of exactly these types a value is its own skeleton
_MAX_DEPTH = 200


def is_stateful(value: Any) -> bool:
    """An object that saves itself: a module, an optimizer, a generator, or anything with the two methods."""
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)) or rng.is_generator(value):
        return True
    if isinstance(value, type):
        return False
    return callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))


class Flattened:
    """Result of `flatten`: `skeleton` (typed-JSON value), tensors by canonical name, `objects` by path.

    `arrays`: tensors over the memory of NumPy arrays, made anew by each call.
    """

    def __init__(self) -> None:
        self.skeleton: Any = None
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.arrays: list[tuple[str, torch.Tensor]] = []
        self.objects: list[tuple[str, Any]] = []

    def everything(self) -> list[tuple[str, torch.Tensor]]:
        """Tensors, then arrays."""
        return self.tensors + self.arrays


def flatten(value: Any, path: str) -> Flattened:
    """Takes `value` apart. Leaves of other types stay as they are; `extra.encode` judges them."""
    result = Flattened()
    result.skeleton = _flatten(value, path, result, 0)
    return result


def _flatten(value: Any, path: str, out: Flattened, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise TypeError(f"{path[:200]}: nested deeper than {_MAX_DEPTH} levels, or a cycle")
    if isinstance(value, torch.Tensor):
        return _tensor(value, path, out, False)
    if isinstance(value, np.ndarray):
        return _tensor(dtypes.from_numpy(value, path), path, out, True)
    kind = type(value)
    if kind in MAPPINGS:
        return _mapping(value, path, out, depth)
    if kind in (list, tuple):
        if extra.is_plain_run(value):
            return value
        return kind(_flatten(item, names.join(path, index), out, depth + 1) for index, item in enumerate(value))
    if kind not in PLAIN and kind not in (bytes, Counter) and is_stateful(value):
        out.objects.append((path, value))
        return ObjectRef(path)
    return value


def _tensor(tensor: torch.Tensor, path: str, out: Flattened, is_array: bool) -> TensorRef:
    name = names.canonical(path)
    (out.arrays if is_array else out.tensors).append((name, tensor))
    wraps = is_wrapper(tensor)
    return TensorRef(name, is_array, wraps, "" if wraps or tensor.is_cpu else str(tensor.device))


def _mapping(value: Any, path: str, out: Flattened, depth: int) -> Any:
    items = [(key, _flatten(item, names.join(path, key), out, depth + 1)) for key, item in value.items()]
    return _mapping_like(value, items)


def _mapping_like(original: Any, items: list[tuple[Any, Any]]) -> Any:
    """A mapping of the type of `original` (one of MAPPINGS) with `items`."""
    if isinstance(original, defaultdict):
        return defaultdict(original.default_factory, items)
    return OrderedDict(items) if isinstance(original, OrderedDict) else dict(items)


def references(skeleton: Any) -> list[TensorRef]:
    """Every tensor that a decoded skeleton refers to, in order."""
    if isinstance(skeleton, TensorRef):
        return [skeleton]
    if isinstance(skeleton, MAPPINGS):
        skeleton = skeleton.values()
    elif not isinstance(skeleton, (list, tuple)):
        return []
    return [ref for item in skeleton for ref in references(item)]


def rebuild(skeleton: Any, tensor_of: Callable[[TensorRef], Any], object_of: Callable[[str], Any]) -> Any:
    """The value again: references replaced by what the two functions give for them."""
    if isinstance(skeleton, TensorRef):
        return tensor_of(skeleton)
    if isinstance(skeleton, ObjectRef):
        return object_of(skeleton.path)
    kind = type(skeleton)
    if kind in MAPPINGS:
        items = [(key, rebuild(item, tensor_of, object_of)) for key, item in skeleton.items()]
        return _mapping_like(skeleton, items)
    if kind in (list, tuple):
        return kind(rebuild(item, tensor_of, object_of) for item in skeleton)
    return skeleton


def write_back(live: Any, value: Any) -> Any:
    """Makes `live` equal to `value`, in place where it is a dict or a list of that type. Returns what stands there."""
    if type(live) in MAPPINGS and type(value) is type(live):
        items = [(key, write_back(live.get(key), item)) for key, item in value.items()]
        live.clear()
        live.update(items)
        return live
    if type(live) is list and type(value) is list:
        shared = [write_back(old, new) for old, new in zip(live, value)]
        live[:] = shared + value[len(shared) :]
        return live
    return value
