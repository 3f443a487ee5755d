"""A loader that resumes in the middle of an epoch with the batch that would have come next.

`batches(loader)` goes round the loader for ever. Its position counts the batches that were handed out, not those that
workers drew ahead. What decides the order is the state of the generators when an epoch begins; it is kept with the
position. To resume: set the generators to that state, make the iterator, skip what was handed out (by indices where the
dataset is a map: nothing is loaded), put the generators back to where the checkpoint has them.

With `seed` the order depends on (seed, epoch) only: a private generator drives the samplers, the global ones are left
alone. Without it the loader draws from the global generators as it always did.

Exact: any sampler that draws when its iterator begins, with and without workers. Augmentation inside workers is exact
from epoch starts only: a worker's own generators begin anew with it.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Callable

import torch
from torch.utils.data import DataLoader, IterableDataset

from . import rng

_FORMAT = 1


def batches(loader: Iterable[Any], seed: int | None = None) -> Batches:
    """Endless, resumable iteration over `loader` (a DataLoader or any re-iterable). Put it into `state`."""
    return Batches(loader, seed)


class Batches:
    """See `batches`. `epoch` and `batch`: where the next batch comes from."""

    def __init__(self, loader: Iterable[Any], seed: int | None) -> None:
        if isinstance(loader, Iterator):
            raise TypeError("ckptd.batches: an iterator can be run through only once; give the loader itself")
        refuse_double_state(loader, "ckptd.batches")
        self.loader = loader
        self.epoch = 0
        self.batch = 0
        self._seed = seed
        self._made = {"seed": seed, "batch_size": _batch_size(loader), "length": _length(loader)}
        self._generator = torch.Generator() if seed is not None else None
        self._iterator: Iterator[Any] | None = None
        self._start: dict[str, Any] | None = None  # generators when the epoch began
        self._resume: dict[str, Any] | None = None
        if self._generator is not None:
            _give_generator(loader, self._generator)
        make_generators(loader)

    def __iter__(self) -> Batches:
        return self

    def __len__(self) -> int:
        """Batches of one epoch, where the loader knows."""
        return len(self.loader)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._resumed() if self._resume is not None else self._begin()
        for _ in range(2):
            try:
                value = next(self._iterator)
            except StopIteration:
                self._end_epoch()
                continue
            self.batch += 1
            return value
        raise ValueError("ckptd.batches: the loader is empty")

    def _end_epoch(self) -> None:
        self.epoch, self.batch = self.epoch + 1, 0
        self._iterator = self._begin()

    def _begin(self) -> Iterator[Any]:
        """Iterator of a fresh epoch."""
        self._prepare_epoch()
        self._start = self._generators()
        self._start["reused"] = getattr(self.loader, "_iterator", None) is not None
        return iter(self.loader)

    def _prepare_epoch(self) -> None:
        set_epoch(self.loader, self.epoch)
        if hasattr(self.loader, "_num_iter_calls"):  # Fabric's wrapper counts for its samplers
            self.loader._num_iter_calls = self.epoch
        if self._generator is not None:
            text = f"{self._seed}:{self.epoch}".encode()
            self._generator.manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1)

    def _resumed(self) -> Iterator[Any]:
        """Iterator of the epoch that `load_state_dict` named, behind the batches that were handed out."""
        resume, self._resume = self._resume, None
        assert resume is not None
        if has_own_state(self.loader) and resume["loader"] is not None:
            return self._resumed_by_itself(resume)
        if resume["start"] is None:
            return self._begin()
        now = rng.capture()
        self._prepare_epoch()
        self._start = resume["start"]
        iterator = skipped(
            self.loader, self.batch, lambda: self._set_generators(resume["start"]), self._start["reused"]
        )
        rng.apply(now)
        self._set_own(resume["own"])
        return iterator

    def _resumed_by_itself(self, resume: dict[str, Any]) -> Iterator[Any]:
        """Of a loader that saves its own position (torchdata's). What making its iterator draws does not count."""
        now = rng.capture()
        self._prepare_epoch()
        self._start = resume["start"]
        self.loader.load_state_dict(resume["loader"])  # type: ignore[attr-defined]
        iterator = iter(self.loader)
        rng.apply(now)
        self._set_own(resume["own"])
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Position, and the generators that decide the order. A fresh or just loaded object gives the same again."""
        if self._resume is not None:
            return dict(self._resume)
        stateful = has_own_state(self.loader) and self._iterator is not None
        return {
            "format": _FORMAT,
            "epoch": self.epoch,
            "batch": self.batch,
            **self._made,
            "start": self._start,
            "own": self._own(),
            "seeds": [sampler.initial_seed for sampler in _seeded(self.loader)],
            "loader": self.loader.state_dict() if stateful else None,  # type: ignore[attr-defined]
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next batch is the one that would have come next. ValueError for another seed, batch size or length of an
        epoch: the order would differ, and so would what `batch` counts."""
        for key, made in self._made.items():
            if state.get(key, made) != made:  # older versions saved the seed only
                raise ValueError(f"ckptd.batches: saved with {key}={state[key]}, made with {key}={made}")
        self.epoch, self.batch = state["epoch"], state["batch"]
        for sampler, seed in zip(_seeded(self.loader), state.get("seeds", ())):
            sampler.initial_seed = seed
        self._resume = dict(state)
        self._iterator = None

    def _own(self) -> list[Any]:
        return own_states(self.loader)

    def _set_own(self, states: list[Any]) -> None:
        set_own_states(self.loader, states)

    def _generators(self) -> dict[str, Any]:
        return generator_states(self.loader)

    def _set_generators(self, states: dict[str, Any]) -> None:
        set_generator_states(self.loader, states)


def _batch_size(loader: Any) -> int | None:
    """As the loader was given it; None where it does not say."""
    size = getattr(loader, "batch_size", None)
    return size if isinstance(size, int) else None


def _length(loader: Any) -> int | None:
    """Batches of the first epoch, where the loader knows. Of an IterableDataset torch asks only to complain later."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None
    try:
        return len(loader)
    except Exception:  # it does not know
        return None


def own_states(loader: Any) -> list[Any]:
    """[names, kind, state] of each generator object of the loader, which the global ones do not cover."""
    found = generators_of(loader)
    return [[names, rng.generator_kind(generator), rng.generator_state(generator)] for names, generator in found]


def set_own_states(loader: Any, states: list[Any]) -> None:
    """Inverse of `own_states`. A generator that is made with the first item is made here when it was there by then.

    ValueError, naming it, for one that was not saved, and for one that cannot be made."""
    if not all(isinstance(saved, list) for saved in states):
        states = _named_by_order(loader, states)
    present = _present(loader, states)
    for names, kind, state in states:
        generator = present.get(names[0]) or _make(loader, names, kind, state)
        try:
            rng.set_generator_state(generator, state)
        except Exception as failed:
            raise ValueError(
                f"ckptd.batches: {names[0]} was saved as a {kind}, which it is not now: {failed}"
            ) from failed


def _named_by_order(loader: Any, states: list[Any]) -> list[Any]:
    """As `own_states` gives them: states of a version that saved them without names."""
    found = generators_of(loader)
    if len(found) != len(states):
        there = f" ({', '.join(names[0] for names, _ in found)})" if found else ""
        raise ValueError(
            f"ckptd.batches: {len(states)} generators were saved, the loader has {len(found)}{there}; make in __init__ "
            "those that its dataset makes with the first item"
        )
    return [[names, rng.generator_kind(one), state] for (names, one), state in zip(found, states)]


def _present(loader: Any, states: list[Any]) -> dict[str, Any]:
    """The generators that the loader has, by the first of the names under which each was saved."""
    present: dict[str, Any] = {}
    for names, generator in generators_of(loader):
        saved = next((saved[0] for saved, *_ in states if set(names) <= set(saved)), None)
        if saved is None or saved in present:
            raise ValueError(
                f"ckptd.batches: {' and '.join(names)} had no generator of its own when this was saved; resume with "
                "the loader as it was then, in a new process"
            )
        present[saved] = generator
    return present


def _make(loader: Any, names: list[str], kind: str, state: Any) -> Any:
    """A generator that the loader does not have yet, put where it was."""
    generator, parts = rng.new_generator(kind, state), _parts(loader)
    places = [(parts.get(owner), attribute) for owner, _, attribute in (name.rpartition(".") for name in names)]
    if generator is None or any(part is None or getattr(part, name, None) is not None for part, name in places):
        raise ValueError(
            f"ckptd.batches: {' and '.join(names)} was a {kind} when this was saved, which is missing and cannot be "
            "made; make it in __init__"
        )
    for part, name in places:
        setattr(part, name, generator)
    return generator


def generator_states(loader: Any) -> dict[str, Any]:
    """States of the global generators and of the loader's own; plain values."""
    return {"global": rng.capture(), "own": own_states(loader)}


def set_generator_states(loader: Any, states: dict[str, Any]) -> None:
    """Inverse of `generator_states`."""
    rng.apply(states["global"])
    set_own_states(loader, states["own"])


def set_epoch(loader: Any, epoch: int) -> None:
    """Tells loader, samplers and dataset, as far as they want to know."""
    for part in _parts(loader).values():
        if callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)


def has_own_state(loader: Any) -> bool:
    """Whether the loader saves its position itself. accelerate's wrapper has the methods whatever it wraps."""
    inner = getattr(loader, "base_dataloader", loader)
    return callable(getattr(inner, "state_dict", None)) and callable(getattr(inner, "load_state_dict", None))


def refuse_double_state(loader: Any, where: str) -> None:
    """TypeError for accelerate's wrapper of a StatefulDataLoader: it fetches a batch beyond the state that it gives."""
    if hasattr(loader, "base_dataloader") and has_own_state(loader):
        raise TypeError(
            f"{where}: accelerate's {type(loader).__name__} fetches one batch more than the StatefulDataLoader in it "
            "says; prepare a plain DataLoader (use_stateful_dataloader=False) and give ckptd.batches(loader)"
        )


def refuse_without_position(value: Any, path: str) -> None:
    """TypeError for a loader in `state` that cannot tell its position. Other objects pass."""
    refuse_double_state(value, path)
    if hasattr(value, "dataset") and hasattr(value, "batch_sampler") and not has_own_state(value):
        raise TypeError(
            f"{path}: a {type(value).__name__} cannot tell its position; put ckptd.batches(loader) here and iterate "
            "over that"
        )


def _parts(loader: Any) -> dict[str, Any]:
    """Loader, samplers and dataset, by name: who may have `set_epoch` or a generator of its own. Each once."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    named = {
        "loader": loader,
        "sampler": getattr(loader, "sampler", None),
        "batch_sampler": batch_sampler,
        "batch_sampler.sampler": getattr(batch_sampler, "sampler", None),
        "dataset": getattr(loader, "dataset", None),
    }
    once = {id(part): name for name, part in reversed(named.items()) if part is not None}
    return {name: part for name, part in named.items() if once.get(id(part)) == name}


def generators_of(loader: Any) -> list[tuple[list[str], Any]]:
    """Generator objects that loader, samplers and dataset hold as attributes, each once with its names."""
    found: dict[int, tuple[list[str], Any]] = {}
    for owner, part in _parts(loader).items():
        for name, value in getattr(part, "__dict__", {}).items():
            if rng.is_generator(value):
                found.setdefault(id(value), ([], value))[0].append(f"{owner}.{name}")
    return list(found.values())


def _seeded(loader: Any) -> list[Any]:
    """accelerate's seedable samplers: they seed their generator with `initial_seed` + epoch when an epoch begins."""
    return [part for part in _parts(loader).values() if hasattr(part, "initial_seed") and hasattr(part, "generator")]


def make_generators(loader: Any) -> None:
    """Makes generators that samplers would make later, as they would: else a save has more of them than a restart."""
    for sampler in _seeded(loader):
        if sampler.generator is None:
            sampler.generator = torch.Generator().manual_seed(sampler.initial_seed)


def _give_generator(loader: Any, generator: torch.Generator) -> None:
    """Parts that would draw from the global generator draw from `generator`."""
    for name, part in _parts(loader).items():
        if name != "dataset" and hasattr(part, "generator") and part.generator is None:
            part.generator = generator


class _Behind:
    """A sampler without its first `count` items, for one iteration."""

    def __init__(self, sampler: Any, count: int) -> None:
        self._sampler = sampler
        self._count = count
        self._left = count
        self._iterator: Iterator[Any] = iter(())

    def skip(self) -> None:
        """Draws what is skipped, and not one item more: the training loop drew no more either."""
        skipped, self._left = self._left, 0
        next(islice(self._iterator, skipped, skipped), None)

    def __iter__(self) -> Iterator[Any]:
        self._iterator = iter(self._sampler)
        return self

    def __next__(self) -> Any:
        if self._left:
            self.skip()
        return next(self._iterator)

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._count)


def skipped(loader: Any, count: int, rewind: Callable[[], None], reused: bool) -> Iterator[Any]:
    """Iterator over `loader` behind its first `count` batches; what decides their order has been drawn when it returns.

    rewind: sets the generators to where the epoch began. reused: persistent workers had been through an epoch before.
    """
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        rewind()
        iterator = iter(loader)
        next(islice(iterator, count, count), None)
        return iterator
    key = "sampler" if loader.batch_sampler is None else "batch_sampler"
    behind = copy.copy(loader)
    sampler = _Behind(getattr(loader, key), count)
    # Past DataLoader.__setattr__, which forbids it after construction.
    behind.__dict__.update({key: [] if reused else sampler, "_iterator": None})
    if not reused:
        rewind()
    iterator = iter(behind)
    if reused:  # an iterator that begins anew does not draw a seed for its workers again
        iterator._index_sampler = sampler
        rewind()
        iterator._reset(behind)
    sampler.skip()
    if loader.persistent_workers and loader.num_workers:
        iterator._index_sampler = loader._index_sampler  # the next epoch goes on with these workers and all items
        loader._iterator = iterator
    return iterator
