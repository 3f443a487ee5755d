"""The parts of a state: who owns tensors, and how they are found again at every save.

A part is surveyed once per registration (slow: names are made, one Python statement a tensor) and captured at every
save (fast: the owners' own dicts are walked by C loops, one Python statement an owner). Tensors are found by owner
and key at each save, never kept: `p.data = x` or `model.to()` must be seen. What `capture` gives is compared with the
survey by the table in `state.py`; a part raises `Moved` itself when its owners no longer have the shape of the
survey.

    stable     tensors that live where the survey saw them; captured from there
    volatile   tensors that an object makes anew at every save; copied into a buffer of ours in `step()`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, compress
from typing import Any, NamedTuple

import torch

from . import extra, fsdp, names, tree
from .lazy import mark_of_module, mark_of_tensor
from .memory import identity
from .shards import Shard, is_wrapper


_REGISTER = "use register_buffer, or get_extra_state and set_extra_state"


class Moved(Exception):
    """The state is no longer laid out as it was surveyed."""


class Row(NamedTuple):
    """One tensor of a part. `shard`: of a plain tensor that is a piece of a larger one; a DTensor tells its own."""

    name: str
    tensor: torch.Tensor
    lazy: bool = False
    shard: Shard | None = None


class Survey(NamedTuple):
    """What a part holds, in the order in which `capture` gives it."""

    stable: list[Row]
    volatile: list[Row]


class Captured(NamedTuple):
    """What a part holds now. `text`: typed JSON of its plain values, or None when it has none.

    `stable` is read once, at once: an iterator costs no pass over all tensors.
    """

    stable: Iterable[torch.Tensor]
    volatile: list[torch.Tensor]
    text: str | None


def _row(name: str, tensor: torch.Tensor, mark: bool | None, is_lazy: Callable[[torch.Tensor], bool]) -> Row:
    """The tensor's own mark counts before its module's, and both before the rule."""
    own = mark_of_tensor(tensor)
    mark = mark if own is None else own
    return Row(name, tensor, is_lazy(tensor) if mark is None else mark)


class Part:
    """One owner of tensors or plain values at `path` of the state."""

    rank = 2  # restore order among plain values: 0 schedulers, 1 optimizers, 2 the rest

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner

    def survey(self) -> Survey:
        """Names everything. TypeError or ValueError, naming the tensor, for what cannot be saved."""
        raise NotImplementedError

    def capture(self) -> Captured:
        """Everything as it is now, in the order of the last survey. Moved when that order no longer fits."""
        raise NotImplementedError


class ModulePart(Part):
    """Parameters and persistent buffers of a module, wrapped or not."""

    def __init__(self, path: str, module: torch.nn.Module, is_lazy: Callable[[torch.Tensor], bool]) -> None:
        super().__init__(path, module)
        self._is_lazy = is_lazy

    def survey(self) -> Survey:
        self._children: list[dict[str, Any]] = []
        self._dicts: list[dict[str, Any]] = []
        self._mask: list[bool] = []
        self._shards: dict[int, Shard] = {}
        rows: list[Row] = []
        self._visit(self.owner, self.path, None, rows)
        self._child_ids = self._ids_of_children()
        return Survey(rows, [])

    def _visit(self, module: torch.nn.Module, path: str, mark: bool | None, rows: list[Row]) -> None:
        own = mark_of_module(module)
        mark = mark if own is None else own
        fsdp.refuse_unsharded(module, path)
        self._shards.update(fsdp.flat_shards(module))
        for held, skipped in ((module._parameters, ()), (module._buffers, module._non_persistent_buffers_set)):
            self._dicts.append(held)
            for key, tensor in held.items():
                self._mask.append(tensor is not None and key not in skipped)
                if tensor is not None and self._mask[-1]:
                    row = _row(names.canonical(names.join(path, key)), tensor, mark, self._is_lazy)
                    rows.append(row._replace(shard=self._shards.get(id(tensor))))
        refuse_own_state(module, path)
        self._children.append(module._modules)
        for key, child in module._modules.items():
            if child is not None:
                self._visit(child, names.join(path, key), mark, rows)

    def _ids_of_children(self) -> list[int]:
        return list(map(id, chain.from_iterable(map(dict.values, self._children))))

    def capture(self) -> Captured:
        if sum(map(len, self._dicts)) != len(self._mask) or self._ids_of_children() != self._child_ids:
            raise Moved(f"{self.path}: parameters, buffers or submodules were added or removed")
        values = chain.from_iterable(map(dict.values, self._dicts))
        return Captured(compress(values, self._mask), [], None)


def refuse_own_state(module: torch.nn.Module, path: str) -> None:
    """TypeError for a module that puts more into its `state_dict()` than parameters, buffers and `get_extra_state`."""
    if type(module)._save_to_state_dict is torch.nn.Module._save_to_state_dict:
        return
    shown: dict[str, Any] = {}
    module._save_to_state_dict(shown, "", True)
    more = sorted(set(shown) - set(module._parameters) - set(module._buffers) - {"_extra_state"})
    if more:
        raise TypeError(_holds_more(path, module, more[0]) + _REGISTER)


def _holds_more(path: str, module: torch.nn.Module, entry: str) -> str:
    kind = type(module).__name__
    return f"{path}: the state_dict() of a {kind} also holds {entry!r}, which is no parameter and no buffer; "


def saves_itself(module: torch.nn.Module) -> bool:
    """Whether a module that is an entry of `state` is saved through its own `state_dict()`, like any object: no
    optimizer updates it, and its class adds to what a module shows."""
    return bool(_added_entries(module)) and not _trains(module)


def _trains(module: torch.nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def refuse_added_entries(parts: list[Part]) -> None:
    """TypeError for a module inside another one whose class adds entries to `state_dict()`, which nobody asks for.

    One that is an entry of its own as well is saved there.
    """
    saved = {id(module) for part in parts if _is_module_itself(part) for module in part.owner.modules()}
    for part in parts:
        if isinstance(part, ModulePart):
            for name, module in part.owner.named_modules():
                added = [] if id(module) in saved else _added_entries(module)
                if added:
                    raise TypeError(_holds_more(names.join(part.path, name), module, added[0]) + _way_out(module))


def _is_module_itself(part: Part) -> bool:
    """Not its `_extra_state` alone."""
    is_object = isinstance(part, ObjectPart) and isinstance(part.owner, torch.nn.Module)
    return is_object and part.load == part.owner.load_state_dict


def _way_out(module: torch.nn.Module) -> str:
    if _trains(module):
        return _REGISTER
    return "give this module to `state` as well, under a key of its own"


def _added_entries(module: torch.nn.Module) -> list[str]:
    """What the `state_dict()` of the module's class shows beside its parameters and buffers, under whatever names.

    A stand-in without children and hooks is asked, for these may take all ranks. A class that asks its children, as
    wrappers do, fails at that, and counts as one that adds nothing.
    """
    if type(module).state_dict is torch.nn.Module.state_dict:
        return []
    alone = object.__new__(type(module))
    vars(alone).update(vars(module), _modules={}, _state_dict_hooks={}, _state_dict_pre_hooks={})
    try:
        shown = type(module).state_dict(alone).items()
        held = {**module._parameters, **module._buffers}
        own = {name for name in held if name not in module._non_persistent_buffers_set} | {"_extra_state"}
        known = [identity(held[name]) for name in own if isinstance(held.get(name), torch.Tensor)]
        return [
            name for name, value in shown
            if name not in own and not (isinstance(value, torch.Tensor) and identity(value) in known)
        ]  # fmt: skip
    except Exception:  # nothing is known
        return []


class TreePart(Part):
    """A live dict or list, or one tensor: read at each save, written back at restore."""

    def __init__(self, path: str, value: Any, is_lazy: Callable[[torch.Tensor], bool]) -> None:
        super().__init__(path, value)
        self._is_lazy = is_lazy
        self._replaced = 0  # how often its tensors were other objects than at the survey before
        self._known: dict[str, int] = {}

    def survey(self) -> Survey:
        flat = tree.flatten(self.owner, self.path)
        self._text = extra.dumps(flat.skeleton, self.path)
        self._keys = list(self.owner) if self._is_run() else None
        self._objects = list(map(id, (item for _, item in flat.objects)))
        self._count_replaced({name: id(tensor) for name, tensor in flat.tensors})
        rows = [_row(name, tensor, None, self._is_lazy) for name, tensor in flat.tensors]
        arrays = [Row(name, tensor) for name, tensor in flat.arrays]
        # A loop that makes new tensors each step (ema[k] = d * ema[k] + ...) would be registered anew each step.
        return Survey([], rows + arrays) if self._replaced > 1 else Survey(rows, arrays)

    def _count_replaced(self, found: dict[str, int]) -> None:
        known, self._known = self._known, found
        if known and known.keys() == found.keys():
            self._replaced += known != found

    def _is_run(self) -> bool:
        """A flat dict of tensors only: its plain text does not change, so a save costs no Python call a tensor."""
        kinds = set(map(type, self.owner.values())) if type(self.owner) is dict else set()
        return bool(kinds) and all(issubclass(kind, torch.Tensor) for kind in kinds)

    def capture(self) -> Captured:
        if self._keys is not None and self._is_run():
            if list(self.owner) != self._keys:
                raise Moved(f"{self.path}: keys were added or removed")
            return self._captured(list(self.owner.values()), [], self._text)
        flat = tree.flatten(self.owner, self.path)
        if list(map(id, (item for _, item in flat.objects))) != self._objects:
            raise Moved(f"{self.path}: objects were added or removed")
        text = extra.dumps(flat.skeleton, self.path)
        return self._captured([tensor for _, tensor in flat.tensors], [tensor for _, tensor in flat.arrays], text)

    def _captured(self, tensors: list[torch.Tensor], arrays: list[torch.Tensor], text: str) -> Captured:
        return Captured([], tensors + arrays, text) if self._replaced > 1 else Captured(tensors, arrays, text)


class ObjectPart(Part):
    """An object with `state_dict` and `load_state_dict`, a generator, or a module's `_extra_state`."""

    def __init__(
        self, path: str, owner: Any, get: Callable[[], Any], load: Callable[[Any], Any], rank: int = 2
    ) -> None:
        super().__init__(path, owner)
        self._get = get
        self.load = load
        self.rank = rank

    def survey(self) -> Survey:
        flat = tree.flatten(self._get(), self.path)
        extra.dumps(flat.skeleton, self.path)
        self._refuse_wrappers(flat.tensors)
        return Survey([], [Row(name, tensor) for name, tensor in flat.everything()])

    def _refuse_wrappers(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in tensors:
            if is_wrapper(tensor):
                raise TypeError(
                    f"{name}: the state_dict() of a {type(self.owner).__name__} gives a {type(tensor).__name__}, which "
                    "cannot be made again from a checkpoint; put that tensor itself into `state`, in a dict"
                )

    def capture(self) -> Captured:
        flat = tree.flatten(self._get(), self.path)
        return Captured([], [tensor for _, tensor in flat.everything()], extra.dumps(flat.skeleton, self.path))
