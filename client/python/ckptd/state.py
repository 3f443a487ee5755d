"""The user's `state` as one flat table of tensors.

`State` knows the parts and surveys them into a `Table`; `Table.refresh()` finds every tensor again at a save and
compares identity, size, contiguity and address with the survey: C loops, no Python statement a tensor. They run block
by block, because what they cost is cache misses: four passes over all tensors at once took twice as long.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, compress, islice
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from . import device, dtypes, names, rng, tree
from .batches import refuse_without_position
from .ddp import unsorted_buckets
from .device import HOST
from .memory import identity, is_plain, refuse_unsupported
from .optim import OptimizerPart, inside, name_parameters, refuse_hidden_state, saved_through
from .parts import (
    Captured,
    ModulePart,
    Moved,
    ObjectPart,
    Part,
    Row,
    Survey,
    TreePart,
    refuse_added_entries,
    saves_itself,
)
from .shards import Block, Leaf, Shard

_Tensor = torch.Tensor
_nbytes = attrgetter("nbytes")
_BLOCK = 1024  # tensors whose Python and C++ objects together fit the second-level cache
EXTRA_FORMAT = 1


class Column(NamedTuple):
    """One tensor as the image stores it. `dtype`: safetensors string; `staged`: captured through a copy of ours.

    `shard`: where it lies in the whole tensor of which it is a piece. `device`: GPU of what is captured, or HOST.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    eager: bool
    staged: bool
    shard: Shard | None = None
    device: int = HOST


class State:
    """The parts of `state`. TypeError with the path for what cannot be saved."""

    def __init__(
        self, state: Any, lazy: str = "auto", fires_hooks: Callable[[Any], bool] = lambda optimizer: True,
        eager_host_limit: int = 64 << 20,
    ) -> None:  # fmt: skip
        """fires_hooks: whether an optimizer is known to fire the hooks of `gate.py`; the others' tensors are eager.

        eager_host_limit: bytes of host tensors that are eager where others live on a GPU, whose gate is on a stream."""
        if lazy not in ("auto", "none"):
            raise ValueError(f"lazy={lazy!r}: 'auto' or 'none'")
        self._auto = lazy == "auto"
        self._lazy_ids: set[int] = set()
        self.forced_eager: set[str] = set()  # tensors that broke the promise, by name
        self._fires_hooks = fires_hooks
        self._eager_host_limit = eager_host_limit
        self.parts: list[Part] = []
        self._root = state
        self._build()

    def _build(self) -> None:
        parts: list[Part] = []
        if not isinstance(self._root, (dict, list, tuple)):
            raise TypeError(f"state: a {type(self._root).__name__}; give a dict, list or tuple of what shall be saved")
        items = self._root.items() if isinstance(self._root, dict) else enumerate(self._root)
        for key, value in items:
            self._add(value, str(key), parts)
        refuse_hidden_state(parts)
        refuse_added_entries(parts)
        self.parts = parts

    def _add(self, value: Any, path: str, parts: list[Part]) -> None:
        if isinstance(value, (_Tensor, np.ndarray)) or type(value) in (*tree.MAPPINGS, list):
            parts.append(TreePart(path, value, self._is_lazy))
            for inner, item in tree.flatten(value, path).objects:
                self._add(item, inner, parts)
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                self._add(item, names.join(path, index), parts)
        elif tree.is_stateful(value):
            refuse_without_position(value, path)
            parts.extend(self._object_parts(value, path))
        else:
            refuse_without_position(value, path)
            raise TypeError(
                f"{path}: a {type(value).__name__} cannot be restored in place; put it into a dict or a list, "
                "or give an object with state_dict() and load_state_dict()"
            )

    def _object_parts(self, value: Any, path: str) -> list[Part]:
        if isinstance(value, torch.nn.Module) and not saves_itself(value):
            return [ModulePart(path, value, self._is_lazy), *_extra_states(value, path)]
        if isinstance(value, torch.optim.Optimizer):
            through = saved_through(value)
            if through is not None:
                return [ObjectPart(path, value, through.state_dict, through.load_state_dict, 1)]
            return [OptimizerPart(path, value, self._auto)]
        if rng.is_generator(value):
            return [_generator_part(path, value)]
        return [ObjectPart(path, value, value.state_dict, _loading(value), 0 if _is_scheduler(value) else 2)]

    def _is_lazy(self, tensor: _Tensor) -> bool:
        return self._auto and tensor.requires_grad and id(tensor) in self._lazy_ids

    def optimizers(self) -> list[OptimizerPart]:
        """The torch optimizers of the state."""
        return [part for part in self.parts if isinstance(part, OptimizerPart)]

    def path_of(self, optimizer: torch.optim.Optimizer) -> str:
        """Where it stands, alone ("optim") or inside another one ("optim.inner"); empty if nowhere."""
        owners = [(part.path, part.owner) for part in self.parts if isinstance(part.owner, torch.optim.Optimizer)]
        owners += [(path + where, inner) for path, owner in owners for where, inner in inside(owner)]
        return next((path for path, owner in owners if owner is optimizer), "")

    def versions(self) -> int:
        """A number that moves when parameters of the optimizers are written, though not with every kind of write."""
        return sum(parameter._version for part in self.optimizers() for parameter in part.parameters())

    def after_restart(self) -> list[str]:
        """Sentences about what this process will do otherwise than one that was not restarted."""
        modules = [part for part in self.parts if isinstance(part, ModulePart)]
        return [sentence for part in modules for sentence in unsorted_buckets(part.owner, part.path)]

    def has_gradients(self) -> bool:
        """Whether a parameter of the optimizers has a gradient."""
        return any(parameter.grad is not None for part in self.optimizers() for parameter in part.parameters())

    def surveys(self) -> dict[str, Survey]:
        """What each part holds, by its path. TypeError or ValueError, naming the tensor, for what cannot be saved."""
        self._build_again()
        hooked = [part for part in self.optimizers() if any(map(self._fires_hooks, part.steppers()))]
        self._lazy_ids = set(map(id, chain.from_iterable(part.parameters() for part in hooked)))
        for part in self.optimizers():
            if part not in hooked:  # it may write what another one updates too
                self._lazy_ids.difference_update(map(id, part.parameters()))
        found = {part.path: part.survey() for part in self.parts if not isinstance(part, OptimizerPart)}
        name_parameters(self.parts, _rows_by_id(self.parts, found))
        for part in self.optimizers():
            part.lazily = self._auto and part in hooked
            found[part.path] = part.survey()
        return found

    def survey(self) -> Table:
        """A new table of everything; errors as of `surveys`."""
        found = self.surveys()
        stable = [row for part in self.parts for row in found[part.path].stable]
        volatile = [row for part in self.parts for row in found[part.path].volatile]
        return Table(self.parts, stable, volatile, self.forced_eager, self._eager_host_limit)

    def _build_again(self) -> None:
        """Live dicts may hold other objects by now. Parts of unchanged owners are kept: they remember their past."""
        before = {(part.path, id(part.owner)): part for part in self.parts}
        self._build()
        self.parts = [before.get((part.path, id(part.owner)), part) for part in self.parts]
        names.check_unique((part.path for part in self.parts), "keys of state")


class Table:
    """Flat table of one survey. `columns[i]` is stored once; `aliases` are (name, i) of tensors tied to it.

    Two countings: *rows* are the tensors that the owners hold; *sources* are the plain ones, which a DTensor or another
    wrapper has inside. They are the same where nothing is wrapped.
    """

    def __init__(
        self, parts: list[Part], stable: list[Row], volatile: list[Row], forced: Iterable[str], eager_host_limit: int = 0
    ) -> None:
        self.parts = parts
        self.columns: list[Column] = []
        self.aliases: list[tuple[str, int]] = []
        self._blocks = [Block(stable[begin : begin + _BLOCK]) for begin in range(0, len(stable), _BLOCK)]
        self._volatile = Block(volatile)
        inside = [leaf for block in self._blocks for leaf in block.leaves]
        self._stable_count = len(inside)
        self._volatile_count = len(self._volatile.leaves)
        self._buffers: dict[int, _Tensor] = {}  # by column: what is captured instead of the tensor itself
        self._sources: list[int] = []  # by column: index among stable + volatile
        self._held: list[_Tensor] = []
        leaves = inside + self._volatile.leaves
        names.check_unique(leaf.name for leaf in leaves)
        self._add_columns(leaves)
        self.devices = sorted({column.device for column in self.columns if column.device != HOST})
        self._spread_eager(leaves, set(forced))
        self._take_host_eagerly(leaves, eager_host_limit)
        self._ids = _numbers(id, [row.tensor for row in stable])
        self._remember([leaf.tensor for leaf in inside])

    def _add_columns(self, rows: list[Leaf]) -> None:
        known: dict[Any, int] = {}
        for index, row in enumerate(rows):
            refuse_unsupported(row.tensor, row.name)
            is_volatile = index >= self._stable_count
            key = ("volatile", index) if is_volatile else identity(row.tensor)
            if key in known:
                self._alias(row, known[key])
                continue
            known[key] = len(self.columns)
            staged = is_volatile or not is_plain(row.tensor)
            column = Column(
                row.name,
                dtypes.string_of(row.tensor, row.name),
                tuple(row.tensor.shape),
                staged or not row.lazy,
                staged,
                row.shard,
            )
            memory = row.tensor
            if staged:
                memory = self._buffers[len(self.columns)] = device.empty_like(row.tensor)
            self.columns.append(column._replace(device=device.ordinal(memory)))
            self._sources.append(index)

    def _alias(self, row: Leaf, column: int) -> None:
        self.aliases.append((row.name, column))
        if not row.lazy:
            self.columns[column] = self.columns[column]._replace(eager=True)

    def _spread_eager(self, rows: list[Leaf], forced: set[str]) -> None:
        """Eager wins over lazy among views of one memory: who writes one writes the others."""
        for column in [i for i, column in enumerate(self.columns) if column.name in forced]:
            self.columns[column] = self.columns[column]._replace(eager=True)
        groups: dict[int, list[int]] = {}
        for column, source in enumerate(self._sources):
            tensor = rows[source].tensor
            if tensor.numel():
                groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(column)
        for members in groups.values():
            if len(members) > 1 and any(self.columns[column].eager for column in members):
                for column in members:
                    self.columns[column] = self.columns[column]._replace(eager=True)

    def _take_host_eagerly(self, rows: list[Leaf], limit: int) -> None:
        """Beside GPUs: the gate of a stream would make the host wait for host memory (Adam's `step`, offloaded state).

        Above the limit it does, and `step()` does not."""
        lazy = [i for i, column in enumerate(self.columns) if column.device == HOST and not column.eager]
        if self.devices and sum(rows[self._sources[column]].tensor.nbytes for column in lazy) <= limit:
            for column in lazy:
                self.columns[column] = self.columns[column]._replace(eager=True)

    def _remember(self, stable: list[_Tensor]) -> None:
        self._held = [tensor.detach() for tensor in stable]  # keeps the memory while the copy thread may read it
        self._sizes = _numbers(_nbytes, stable)
        self._folded = [tensor.dim() > 1 for tensor in stable]  # only these can be transposed in place
        self._contiguous = list(map(_Tensor.is_contiguous, stable))
        self._pointers = _numbers(_Tensor.data_ptr, stable)
        sources = [self._sources[column] for column in self._buffers]
        self._staged = [source for source in sources if source < self._stable_count]
        places = np.append(self._pointers, np.zeros(self._volatile_count, dtype=np.uint64))
        self.addresses = places[np.array(self._sources, dtype=np.intp)]
        for column, buffer in self._buffers.items():
            self.addresses[column] = buffer.data_ptr()

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(int(self._sizes[s]) for s in self._sources if s < self._stable_count) + sum(
            buffer.nbytes for column, buffer in self._buffers.items() if self._sources[column] >= self._stable_count
        )

    def holds_any(self, tensors: list[_Tensor]) -> bool:
        """Whether one of them is among those that the owners hold."""
        return bool(np.isin(_numbers(id, tensors), self._ids).any())

    def refresh(self) -> str:
        """Finds every tensor again, fills the staging buffers, gives the text of the parts' plain values.

        Raises Moved when a tensor is not where the table says. After it, `addresses` hold what is to be captured.
        """
        captured = [part.capture() for part in self.parts]
        stable = chain.from_iterable(part.stable for part in captured)
        staged: list[_Tensor] = []
        row, source = 0, 0
        for block in self._blocks:
            held = list(islice(stable, block.count))
            if not self._same_objects(row, block.count, held):
                raise Moved("a tensor was replaced by another one")
            tensors, begin = block.inside(held), source
            self._compare(tensors, begin)
            row, source = row + block.count, begin + len(tensors)
            first, last = bisect_left(self._staged, begin), bisect_left(self._staged, source)
            staged += [tensors[index - begin] for index in self._staged[first:last]]
        if next(stable, None) is not None:
            raise Moved("tensors were added")
        volatile = list(chain.from_iterable(part.volatile for part in captured))
        if len(volatile) != self._volatile.count:
            raise Moved("an object has more or fewer tensors than before")
        self._stage(staged, self._volatile.inside(volatile))
        return _plain_text(self.parts, captured)

    def _same_objects(self, row: int, count: int, held: list[_Tensor]) -> bool:
        return np.array_equal(self._ids[row : row + count], _numbers(id, held))

    def _compare(self, block: list[_Tensor], begin: int) -> None:
        rows = slice(begin, begin + len(block))
        if not np.array_equal(self._pointers[rows], _numbers(_Tensor.data_ptr, block)):
            raise Moved("a tensor moved")
        if not np.array_equal(self._sizes[rows], _numbers(_nbytes, block)):
            raise Moved("a tensor changed its size")
        folded = self._folded[rows]
        found = list(map(_Tensor.is_contiguous, compress(block, folded)))
        if found != list(compress(self._contiguous[rows], folded)):
            raise Moved("a tensor changed its strides")

    def _stage(self, stable: list[_Tensor], volatile: list[_Tensor]) -> None:
        """`stable`: those of them that are staged, in the order of the columns."""
        for (column, buffer), tensor in zip(self._buffers.items(), stable + volatile):
            if tensor.shape != buffer.shape or tensor.dtype != buffer.dtype:
                raise Moved(f"{self.columns[column].name}: its shape or dtype changed")
            buffer.copy_(tensor.detach())

    def release(self) -> None:
        """Drops every reference to the user's memory. The table is of no use afterwards."""
        self._held.clear()
        self._buffers.clear()


def _numbers(of: Callable[[_Tensor], int], tensors: list[_Tensor]) -> np.ndarray:
    """`of` each tensor, by one C loop."""
    return np.fromiter(map(of, tensors), dtype=np.uint64, count=len(tensors))


def _plain_text(parts: list[Part], captured: list[Captured]) -> str:
    texts = (f"{json.dumps(part.path)}:{found.text}" for part, found in zip(parts, captured) if found.text is not None)
    return "{" + ",".join(texts) + "}"


def extra_text(plain: str, generators: str) -> str:
    """The document of the extra tensor: plain values by part, states of the generators (typed JSON, or null)."""
    return f'{{"format":{EXTRA_FORMAT},"parts":{plain},"rng":{generators}}}'


def _generator_part(path: str, value: Any) -> Part:
    get, load = partial(rng.generator_state, value), partial(rng.set_generator_state, value)
    return ObjectPart(path, value, get, load, 3)


def _loading(value: Any) -> Callable[[Any], Any]:
    """`load_state_dict`. A loader of torchdata makes its iterator, which draws, when its state is asked for or in the
    loop: asked for here, it draws before the generators are set."""
    if not hasattr(value, "_initial_iter_for_state_dict"):
        return value.load_state_dict

    def load(state: Any) -> None:
        value.load_state_dict(state)
        value.state_dict()

    return load


def _is_scheduler(value: Any) -> bool:
    schedulers = torch.optim.lr_scheduler
    return isinstance(value, (schedulers.LRScheduler, schedulers.ReduceLROnPlateau))


def _extra_states(module: torch.nn.Module, path: str) -> list[Part]:
    """Modules that override `get_extra_state` (FP8 recipes) save through it, as `state_dict()` would."""
    default = torch.nn.Module.get_extra_state
    return [
        ObjectPart(
            names.join(names.canonical(names.join(path, name)), "_extra_state"),
            child,
            child.get_extra_state,
            child.set_extra_state,
        )
        for name, child in module.named_modules()
        if type(child).get_extra_state is not default
    ]


def _rows_by_id(parts: list[Part], surveys: dict[str, Survey]) -> dict[int, tuple[str, Row]]:
    """Path of the part and row of every surveyed tensor by its id, the first row of a tied one."""
    found: dict[int, tuple[str, Row]] = {}
    for part in parts:
        survey = surveys.get(part.path)
        for row in survey.stable if survey is not None else ():
            found.setdefault(id(row.tensor), (names.canonical(part.path), row))
    return found
