"""Where restored bytes go: into the trainer's own tensors, or into new ones that it does not have yet.

Everything is planned and compared first; nothing of the trainer is touched while a name, shape or dtype may still
differ. Tensors are never cast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import dtypes, extra, names, tree
from .extra import TensorRef
from .header import Entry, Header
from .optim import OptimizerPart, home_of, members
from .parts import ObjectPart, Part, Survey, TreePart
from .shards import Leaf, Shard, Spec, is_dtensor, leaves, new_on_mesh_of, spec

_HOST = torch.device("cpu")


class Plan:
    """What a restore will do. `problems`: sentences about what differs; `targets`: tensors to fill, by entry.

    `reshaped`: ids of tensors whose shape, or place in the whole, is another one here. `left_out`: sentences about what
    is left out because of them. devices: where the tensors of this trainer live.
    """

    def __init__(self, header: Header, document: dict[str, Any], devices: Iterable[torch.device] = ()) -> None:
        self.header = header
        self.plain: dict[str, Any] = document["parts"]
        self.problems: list[str] = []
        self.left_out: dict[str, None] = {}  # in order, each once
        self.reshaped: set[int] = set()
        self.targets: list[tuple[Entry, torch.Tensor]] = []
        self.actions: list[tuple[int, Any]] = []  # (restore order, function without arguments)
        self._claimed: set[str] = set()
        self._gpus = set(devices) - {_HOST}

    def into(self, name: str, tensor: torch.Tensor, shard: Shard | None = None) -> None:
        """`tensor` will hold the stored tensor `name`, or what it wraps those that belong to it."""
        for leaf in leaves(name, tensor, shard=shard):
            entry = self._claim(leaf.name)
            if entry is None:
                self.problems.append(f"{leaf.name}: not in the checkpoint")
            elif self._fits(leaf, entry):
                self.targets.append((entry, leaf.tensor))
            elif _place(leaf) != (entry.shape, entry.offsets):
                self.reshaped.add(id(tensor))

    def place(self, saved: str) -> torch.device:
        """Where to make what lived on `saved`, empty for host memory: there if tensors of this trainer do too, else on
        its only GPU, or on the current one of several. A trainer that has none on a GPU gets none there."""
        wanted = torch.device(saved or _HOST)
        if wanted == _HOST or wanted in self._gpus:
            return wanted
        return torch.device(wanted.type) if len(self._gpus) > 1 else next(iter(self._gpus), _HOST)

    def new(self, name: str, like: torch.Tensor | None = None, device: torch.device = _HOST) -> torch.Tensor | None:
        """A new tensor of the stored dtype and shape (strides of `like` if it has the shape), to hold `name`."""
        entry = self._claim(name)
        if entry is None:
            self.problems.append(f"{name}: not in the checkpoint")
            return None
        dtype = dtypes.torch_of(entry.dtype, name)
        if like is not None and tuple(like.shape) == entry.shape:
            tensor = torch.empty_like(like, dtype=dtype, device=device, requires_grad=False)
        else:
            tensor = torch.empty(entry.shape, dtype=dtype, device=device)
        self.targets.append((entry, tensor))
        return tensor

    def new_dtensor(self, name: str, parameter: Any, wanted: Spec) -> Any:
        """A new DTensor of the stored dtype on the mesh of `parameter`, to hold `name`."""
        entry = self.header.entries[name]
        tensor = new_on_mesh_of(parameter, wanted, dtypes.torch_of(entry.dtype, name))
        self.into(name, tensor)
        return tensor

    def unclaimed(self) -> list[str]:
        """Stored tensors that nothing in this trainer takes."""
        return [name for name in self.header.entries if name not in self._claimed]

    def names_under(self, prefix: str) -> list[str]:
        """Stored names that begin with `prefix`."""
        return [name for name in self.header.entries if name.startswith(prefix)]

    def leave_out(self, name: str, sentence: str) -> None:
        """Nothing takes the stored tensor `name`."""
        self._claim(name)
        self.left_out[sentence] = None

    def _claim(self, name: str) -> Entry | None:
        stored = name if name in self.header.entries else self.header.aliases.get(name, "")
        self._claimed.add(stored)
        return self.header.entries.get(stored)

    def _fits(self, leaf: Leaf, entry: Entry) -> bool:
        have = (dtypes.string_of(leaf.tensor, leaf.name), tuple(leaf.tensor.shape))
        if have != (entry.dtype, entry.shape):
            self.problems.append(
                f"{leaf.name}: {have[0]} {list(have[1])} here, {entry.dtype} {list(entry.shape)} in the checkpoint"
            )
            return False
        _, offsets = _place(leaf)
        if offsets != entry.offsets:
            self.problems.append(
                f"{leaf.name}: the shard at {list(offsets)} here, at {list(entry.offsets)} in the checkpoint"
            )
            return False
        return True


def _place(leaf: Leaf) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and offsets."""
    shape = tuple(leaf.tensor.shape)
    return shape, leaf.shard.offsets if leaf.shard else (0,) * len(shape)


def plan_part(plan: Plan, part: Part, survey: Survey) -> None:
    """Adds what restores `part` to the plan."""
    if isinstance(part, OptimizerPart):
        _plan_optimizer(plan, part)
    elif isinstance(part, ObjectPart):
        _plan_object(plan, part)
    elif isinstance(part, TreePart):
        _plan_tree(plan, part, {row.name: row.tensor for row in [*survey.stable, *survey.volatile]})
    else:
        for row in survey.stable:
            plan.into(row.name, row.tensor, row.shard)


def _skeleton(plan: Plan, part: Part) -> Any:
    if part.path not in plan.plain:
        plan.problems.append(f"{part.path}: nothing under this key in the checkpoint")
        return None
    return plan.plain[part.path]


def _plan_object(plan: Plan, part: ObjectPart) -> None:
    skeleton = _skeleton(plan, part)
    found = {ref.name: plan.new(ref.name, device=plan.place(ref.device)) for ref in tree.references(skeleton)}
    if part.path in plan.plain:
        plan.actions.append((part.rank, lambda: part.load(_rebuilt(skeleton, found, None))))


def _plan_tree(plan: Plan, part: TreePart, existing: dict[str, torch.Tensor]) -> None:
    skeleton = _skeleton(plan, part)
    flat = tree.flatten(part.owner, part.path)
    found: dict[str, Any] = {}
    for ref in tree.references(skeleton):
        if ref.name in existing:
            plan.into(ref.name, existing[ref.name])
            found[ref.name] = existing[ref.name]
        elif ref.wraps:
            plan.problems.append(f"{ref.name}: a tensor that wraps others in the checkpoint; make it before restore()")
        else:
            found[ref.name] = plan.new(ref.name, device=plan.place(ref.device))
    objects = dict(flat.objects)
    if not isinstance(part.owner, torch.Tensor) and part.path in plan.plain:
        plan.actions.append((part.rank, lambda: tree.write_back(part.owner, _rebuilt(skeleton, found, objects))))


def _rebuilt(skeleton: Any, found: dict[str, Any], objects: dict[str, Any] | None) -> Any:
    """The value again. A NumPy array comes back over the memory of its tensor, which a live array shares."""

    def tensor_of(ref: TensorRef) -> Any:
        value = found[ref.name]
        return value.numpy() if ref.is_array and isinstance(value, torch.Tensor) else value

    return tree.rebuild(skeleton, tensor_of, lambda path: (objects or {})[path])


def _plan_optimizer(plan: Plan, part: OptimizerPart) -> None:
    document = _skeleton(plan, part)
    if document is None:
        return
    groups = part.optimizer.param_groups
    if len(groups) != len(document["groups"]):
        plan.problems.append(
            f"{part.path}: {len(groups)} parameter groups here, {len(document['groups'])} in the checkpoint"
        )
        return
    plan.problems += _regrouped(part, document.get("members"))
    options = [_options(plan, live, saved) for live, saved in zip(groups, document["groups"])]
    state = _optimizer_state(plan, part, document)

    def load() -> None:
        part.optimizer.state.clear()
        part.optimizer.state.update(state)
        for live, saved in zip(groups, options):
            live.update(saved)

    plan.actions.append((part.rank, load))


def _regrouped(part: OptimizerPart, saved: dict[str, Any] | None) -> list[str]:
    """A sentence when the groups hold other parameters than those whose options they would get.

    saved: `members` of the document; None in one that was written before it had them.
    """
    here = members(part.group_of)
    if saved is None or saved == here:
        return []
    if saved["names"] != here["names"]:
        count, before = len(here["groups"]), len(saved["groups"])
        return [f"{part.path}: the {count} parameters that it updates are not the {before} of the checkpoint"]
    groups = dict(zip(sorted(part.group_of), saved["groups"]))
    name, group = next((name, group) for name, group in part.group_of.items() if group != groups[name])
    return [
        f"{part.path}: {name} is in parameter group {group} here, in group {groups[name]} in the checkpoint; options go "
        "by the number of the group, so make the groups as they were"
    ]


def _options(plan: Plan, live: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Options of one group; a tensor option is filled in place where the group has one."""
    found: dict[str, Any] = {}
    for option, value in saved.items():
        for ref in tree.references(value):
            have = live.get(option)
            if isinstance(have, torch.Tensor):
                plan.into(ref.name, have)
            else:
                have = plan.new(ref.name, device=plan.place(ref.device))
            found[ref.name] = have
    return {option: _rebuilt(value, found, None) for option, value in saved.items()}


def _optimizer_state(plan: Plan, part: OptimizerPart, document: dict[str, Any]) -> dict[Any, dict[Any, Any]]:
    """State as it was saved: existing tensors are filled, missing ones made from the header.

    That of a parameter with another shape stays what it is here, or is begun by the next step: a half of it is of no use.
    """
    owners = {part.parameter_name(parameter): parameter for parameter in part.parameters()}
    owners.update({str(key): key for key in part.optimizer.state if not isinstance(key, torch.Tensor)})
    state: dict[Any, dict[Any, Any]] = {}
    nested = _nested_state(plan, document, owners, state)
    prefix = names.join(part.path, "state") + "."
    for name in plan.names_under(prefix):
        found = None if name in nested else _owner(name.removeprefix(prefix), owners)
        if found is None:
            continue
        parameter, key = found
        if id(parameter) in plan.reshaped:
            who = part.parameter_name(parameter)
            plan.leave_out(name, f"{part.path}: the state of {who} is left out, its shape is another one here")
        else:
            state.setdefault(parameter, {})[key] = _state_tensor(plan, part, name, parameter, key, document)
    state.update({owner: held for owner, held in part.optimizer.state.items() if id(owner) in plan.reshaped})
    return {owner: state[owner] for owner in owners.values() if owner in state}


def _state_tensor(plan: Plan, part: OptimizerPart, name: str, owner: Any, key: str, document: dict[str, Any]) -> Any:
    have = part.optimizer.state.get(owner, {}).get(key) if owner in part.optimizer.state else None
    if isinstance(have, torch.Tensor):
        plan.into(name, have)
        return have
    if is_dtensor(owner):
        wanted = document.get("other", {}).get(name, spec(owner) if key in document.get("like", ()) else None)
        if wanted is not None:
            return plan.new_dtensor(name, owner, wanted)
        owner = owner._local_tensor
    like = owner if isinstance(owner, torch.Tensor) else None
    return plan.new(name, like, _state_device(plan, name, owner, key, document))


def _state_device(plan: Plan, name: str, owner: Any, key: Any, document: dict[str, Any]) -> torch.device:
    saved = document["devices"].get(name, document["devices"].get(str(key)))
    return home_of(owner) if saved is None else plan.place(saved)


def _owner(rest: str, owners: dict[str, Any]) -> tuple[Any, str] | None:
    """Splits `<parameter>.<key>`: the longest parameter name that exists."""
    head, tail = rest, ""
    while "." in head:
        head, _, last = head.rpartition(".")
        tail = names.join(last, tail)
        if head in owners:
            return owners[head], tail
    return None


def _nested_state(plan: Plan, document: dict[str, Any], owners: dict[str, Any], state: dict[Any, Any]) -> set[str]:
    """State that is no tensor, or nests tensors. Returns the names of the tensors nested in it."""
    used: set[str] = set()
    for name, values in document["state"].items():
        if name not in owners:
            plan.problems.append(f"{name}: the optimizer here does not update this parameter")
            continue
        if id(owners[name]) in plan.reshaped:
            continue
        for key, skeleton in values.items():
            found = _nested_tensors(plan, owners[name], key, skeleton, document)
            used.update(found)
            state.setdefault(owners[name], {})[key] = _rebuilt(skeleton, found, None)
    return used


def _nested_tensors(plan: Plan, owner: Any, key: Any, skeleton: Any, document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for ref in tree.references(skeleton):
        device = _HOST if ref.is_array else _state_device(plan, ref.name, owner, key, document)
        found[ref.name] = plan.new(ref.name, device=device)
    return found


def decode_document(text: bytes) -> dict[str, Any]:
    """The extra tensor's document. ValueError when it is not one."""
    document = extra.loads(text)
    if not isinstance(document, dict) or document.get("format") != 1 or not isinstance(document.get("parts"), dict):
        raise ValueError("the extra tensor holds no document of this version; written by a newer ckptd?")
    return document
