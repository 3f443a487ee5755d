"""State of a torch optimizer: tensors by parameter name, plain hyper-parameters as typed JSON.

`Optimizer.state_dict()` numbers parameters by position and costs 20 ms at 20,000 tensors; it is not called. The plain
values are ``{"groups": [{option: value}], "state": {parameter: {key: value}}, "members": {"names": digest, "groups":
[number]}, "devices": {key or name: device}, "like": [key], "other": {name: spec}}``: options without `params`, state that
is no tensor (or nests tensors: LBFGS), who is in which group (of the parameters sorted by name), the keys whose tensors
do not live where their parameter lives (AdamW's `step` on the CPU) and the single tensors for which that is not true, the
keys whose tensors are DTensors with the shape and placements of their parameter, and what is said of single tensors
instead (`shards.spec`, null: no DTensor).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain, compress
from typing import Any, Callable, NamedTuple

import torch

from . import extra, names, tree
from .parts import Captured, Moved, Part, Row, Survey
from .shards import Shard, Spec, is_dtensor, is_wrapper, spec


class Lives(NamedTuple):
    """Where a tensor of the state lives, and where its parameter does."""

    name: str
    key: str
    device: torch.device
    home: torch.device


class OptimizerPart(Part):
    """Everything of one optimizer but its parameters, which belong to modules."""

    rank = 1

    def __init__(self, path: str, optimizer: torch.optim.Optimizer, lazily: bool) -> None:
        super().__init__(path, optimizer)
        self.optimizer = optimizer
        self.lazily = lazily
        self.name_of: Callable[[torch.Tensor], str | None] = lambda parameter: None
        self.shard_of: Callable[[torch.Tensor], Shard | None] = lambda parameter: None

    def steppers(self) -> list[torch.optim.Optimizer]:
        """Who may fire the hooks for this state: the optimizer, and those inside it whose state it shows as its own."""
        return _of_one_state(self.optimizer)

    def parameters(self) -> list[torch.Tensor]:
        """All parameters, in the order of the groups."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def parameter_name(self, key: Any) -> str:
        """Name of a key of `optimizer.state`: a parameter's, or the key itself (a few optimizers use text)."""
        if not isinstance(key, torch.Tensor):
            return str(key)
        name = self.name_of(key)
        if name is None:
            raise ValueError(
                f"{self.path}: it updates a parameter of shape {tuple(key.shape)} that no module in `state` has"
            )
        return name

    def survey(self) -> Survey:
        self.group_of = self._groups_by_name()
        self._parameter_ids = self._ids_of_parameters()
        self._state_ids = list(map(id, self.optimizer.state))
        self._mask: list[bool] = []
        self._nested: list[tuple[Any, str, Any]] = []
        self._specs: dict[str, tuple[str, Spec | None, Spec]] = {}  # of state of DTensors: key, its own, the parameter's
        options, plain = self._options()
        stable = [Row(name, tensor) for name, tensor in options]
        lives: list[Lives] = []
        for key, held in self.optimizer.state.items():
            self._survey_one(key, held, stable, lives)
        volatile, state = self._nested_values()
        fixed = {"members": members(self.group_of), "devices": _elsewhere(lives), **self._sharding()}
        self._fixed = extra.dumps(fixed, self.path)
        extra.dumps([plain, state], self.path)
        return Survey(stable, [Row(name, tensor) for name, tensor in volatile])

    def _groups_by_name(self) -> dict[str, int]:
        """Number of the group of each parameter, in the order of the groups."""
        return {
            self.parameter_name(parameter): index
            for index, group in enumerate(self.optimizer.param_groups)
            for parameter in group["params"]
        }

    def _survey_one(self, key: Any, held: Any, rows: list[Row], lives: list[Lives]) -> None:
        if not isinstance(held, dict):
            raise TypeError(f"{self.path}: its state of a parameter is a {type(held).__name__}, not a dict")
        parameter, home = self.parameter_name(key), home_of(key)
        for item, value in held.items():
            is_tensor = isinstance(value, torch.Tensor)
            self._mask.append(is_tensor)
            if not is_tensor:
                self._nested.append((key, parameter, item))
                inside = self._flat(key, parameter, item).tensors
                lives += [Lives(name, str(item), tensor.device, home) for name, tensor in inside]
                continue
            name = names.optimizer_state(self.path, parameter, item)
            rows.append(Row(name, value, self.lazily, self._shard_like(key, value)))
            lives.append(Lives(name, str(item), value.device, home))
            self._note_spec(name, str(item), key, value)

    def _shard_like(self, key: Any, value: torch.Tensor) -> Shard | None:
        """Where state of FSDP1 lies: as its parameter, if it has the same shape."""
        same = isinstance(key, torch.Tensor) and value.shape == key.shape
        return self.shard_of(key) if same else None

    def _note_spec(self, name: str, item: str, key: Any, value: torch.Tensor) -> None:
        """How this tensor is made again in a process that does not have it yet."""
        if is_dtensor(value) and is_dtensor(key) and value.device_mesh == key.device_mesh:
            self._specs[name] = item, spec(value), spec(key)
        elif is_wrapper(value):
            raise TypeError(
                f"{name}: a {type(value).__name__} in the state of an optimizer cannot be made again from a "
                "checkpoint; use an optimizer whose state is plain tensors, or DTensors on the mesh of the parameter"
            )
        elif is_dtensor(key):
            self._specs[name] = item, None, spec(key)

    def _sharding(self) -> dict[str, Any]:
        """`like` and `other` of the document; nothing where there are no DTensors."""
        like = {item for item, own, parameter in self._specs.values() if own == parameter}
        other = {
            name: own for name, (item, own, parameter) in self._specs.items()
            if own != (parameter if item in like else None)
        }  # fmt: skip
        return {"like": sorted(like), "other": other} if like or other else {}

    def _ids_of_parameters(self) -> list[list[int]]:
        return [list(map(id, group["params"])) for group in self.optimizer.param_groups]

    def _options(self) -> tuple[list[tuple[str, torch.Tensor]], list[dict[str, Any]]]:
        """Tensor hyper-parameters (learning rate, betas): eager, a scheduler changes them at any time. The plain ones."""
        tensors: list[tuple[str, torch.Tensor]] = []
        plain: list[dict[str, Any]] = []
        for index, group in enumerate(self.optimizer.param_groups):
            plain.append({})
            for option, value in group.items():
                if type(value) in tree.PLAIN:
                    plain[-1][option] = value
                elif option != "params":
                    flat = tree.flatten(value, names.join(self.path, "param_groups", index, option))
                    tensors += flat.tensors
                    plain[-1][option] = flat.skeleton
        return tensors, plain

    def _nested_values(self) -> tuple[list[tuple[str, torch.Tensor]], dict[str, dict[Any, Any]]]:
        """State that is no tensor, with the tensors nested in it."""
        tensors: list[tuple[str, torch.Tensor]] = []
        state: dict[str, dict[Any, Any]] = {}
        for key, parameter, item in self._nested:
            flat = self._flat(key, parameter, item)
            tensors += flat.everything()
            state.setdefault(parameter, {})[item] = flat.skeleton
        return tensors, state

    def _flat(self, key: Any, parameter: str, item: Any) -> tree.Flattened:
        return tree.flatten(self.optimizer.state[key][item], names.optimizer_state(self.path, parameter, item))

    def capture(self) -> Captured:
        state = self.optimizer.state
        if list(map(id, state)) != self._state_ids or self._ids_of_parameters() != self._parameter_ids:
            raise Moved(f"{self.path}: parameters or state were added or removed")
        if sum(map(len, state.values())) != len(self._mask):
            raise Moved(f"{self.path}: state tensors were added or removed")
        values = chain.from_iterable(map(dict.values, state.values()))
        options, groups = self._options()
        nested, plain = self._nested_values()
        text = extra.dumps({"groups": groups, "state": plain}, self.path)
        stable = chain((tensor for _, tensor in options), compress(values, self._mask))
        return Captured(stable, [tensor for _, tensor in nested], f"{text[:-1]},{self._fixed[1:]}")


def members(group_of: dict[str, int]) -> dict[str, Any]:
    """`members` of the document: two bytes a parameter, where its name would take forty."""
    found = sorted(group_of)
    digest = hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
    return {"names": digest, "groups": [group_of[name] for name in found]}


def home_of(key: Any) -> torch.device:
    """Where state of `key` lives unless something else is said: with its parameter."""
    return key.device if isinstance(key, torch.Tensor) else torch.device("cpu")


def _elsewhere(lives: list[Lives]) -> dict[str, str]:
    """`devices` of the document."""
    by_key = {one.key: one.device for one in lives if one.device != one.home}
    odd = {one.name: one.device for one in lives if one.device != by_key.get(one.key, one.home)}
    return {what: str(where) for what, where in {**by_key, **odd}.items()}


def name_parameters(parts: list[Part], rows: dict[int, tuple[str, Row]]) -> None:
    """Tells each optimizer its parameters' names and shards, given path of the part and row of each tensor by id.

    Within one module the name is the module's own (``layer.weight``, as torch.distributed.checkpoint has it); an
    optimizer over several modules uses the full ones, which are unique.
    """
    for part in parts:
        if isinstance(part, OptimizerPart):
            part.name_of = _namer(part, rows)
            part.shard_of = lambda parameter: rows[id(parameter)][1].shard if id(parameter) in rows else None


def _namer(part: OptimizerPart, rows: dict[int, tuple[str, Row]]) -> Callable[[torch.Tensor], str | None]:
    owners = {rows[id(parameter)][0] for parameter in part.parameters() if id(parameter) in rows}
    owner = owners.pop() if len(owners) == 1 else ""

    def name_of(parameter: torch.Tensor) -> str | None:
        found = rows.get(id(parameter))
        if found is None:
            return None
        name = found[1].name
        return name.removeprefix(owner + ".") if owner else name

    return name_of


def inside(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.optim.Optimizer]]:
    """The optimizers that it holds, and those that they hold, with where: (".optimizers[0]", the optimizer)."""
    return list(_inside(optimizer, {id(optimizer)}))


def _inside(holder: Any, seen: set[int]) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    named = isinstance(holder, torch.optim.Optimizer)
    items = vars(holder).items() if named else holder.items() if isinstance(holder, dict) else enumerate(holder)
    for key, item in items:
        if not isinstance(item, (torch.optim.Optimizer, dict, list, tuple)) or id(item) in seen:
            continue
        if named and key in ("state", "param_groups"):  # its tensors, which are many
            continue
        seen.add(id(item))
        found = [("", item)] if isinstance(item, torch.optim.Optimizer) else []
        for rest, optimizer in [*found, *_inside(item, seen)]:
            yield (f".{key}" if named else f"[{key!r}]") + rest, optimizer


def _of_one_state(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """The optimizer, then those inside whose state it shows as its own (accelerate's wrapper)."""
    return [optimizer, *(inner for _, inner in inside(optimizer) if inner.state is optimizer.state)]


def saved_through(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer | None:
    """Through whose `state_dict()` it is saved, like any object: its own, or that of one whose state it shows.

    None where state and groups are everything.
    """
    return next(filter(_shows_more, _of_one_state(optimizer)), None)


def _shows_more(optimizer: torch.optim.Optimizer) -> bool:
    if type(optimizer).state_dict is torch.optim.Optimizer.state_dict:
        return False
    if hasattr(optimizer, "consolidate_state_dict"):  # ZeroRedundancyOptimizer: to ask may be collective
        return False
    try:
        shown = optimizer.state_dict()
    except Exception:  # not now: nothing is known
        return False
    return not isinstance(shown, dict) or not set(shown) <= {"state", "param_groups"}


def refuse_hidden_state(parts: list[Part]) -> None:
    """TypeError for an optimizer that keeps another one inside whose state nobody saves (Lookahead, SAM).

    One that shows the inner state as its own (accelerate's) is as good as the inner one, and one that is saved through
    a `state_dict()` saves what is inside.
    """
    owners = [part for part in parts if isinstance(part.owner, torch.optim.Optimizer)]
    through = [inner for part in owners if not isinstance(part, OptimizerPart) for _, inner in inside(part.owner)]
    saved = {id(optimizer.state) for optimizer in [*(part.owner for part in owners), *through]}
    for part in parts:
        for where, inner in inside(part.owner) if isinstance(part, OptimizerPart) else ():
            if id(inner.state) not in saved:
                raise TypeError(
                    f"{part.path}: a {type(part.owner).__name__} holds another optimizer in {where}, whose "
                    f"state would be lost; put that one ({type(inner).__name__}) into `state` as well"
                )
