"""Rows about where batches come from."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from .rows import Loop, Net, dataset, row, shuffled, updating


def loop(loader: Any, seed: int | None = None) -> Loop:
    """Dropout draws from the generator that the loader draws from."""
    model = Net(nn.Dropout(0.2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer), loader, seed)


ALL = ("position", "order", "generators after iter")


@row("shuffled DataLoader", *ALL)
def plain() -> Loop:
    return loop(shuffled())


@row("shuffled DataLoader, batches(loader, seed=...)", "position")
def seeded() -> Loop:
    return loop(shuffled(), seed=3)


@row("shuffled DataLoader, two workers", *ALL)
def workers() -> Loop:
    return loop(shuffled(num_workers=2))


@row("shuffled DataLoader, two persistent workers", *ALL)
def persistent() -> Loop:
    return loop(shuffled(num_workers=2, persistent_workers=True))


@row("shuffled DataLoader with a generator of its own", "position", "order")
def own_generator() -> Loop:
    return loop(shuffled(generator=torch.Generator().manual_seed(4)))


@row("sequential DataLoader, drop_last", "position")
def sequential() -> Loop:
    return loop(DataLoader(dataset(), 4, drop_last=True))


@row("RandomSampler with a generator of its own", "position", "order")
def random_sampler() -> Loop:
    sampler = RandomSampler(dataset(), generator=torch.Generator().manual_seed(4))
    return loop(DataLoader(dataset(), 4, sampler=sampler))


@row("WeightedRandomSampler", *ALL)
def weighted() -> Loop:
    return loop(DataLoader(dataset(), 4, sampler=WeightedRandomSampler([1.0 + i % 3 for i in range(22)], 22)))


@row("DistributedSampler with set_epoch", "position")
def distributed_sampler() -> Loop:
    class Plain(DistributedSampler):
        """The loop over epochs that a user writes calls set_epoch."""

        def __iter__(self):
            found = super().__iter__()
            self.set_epoch(self.epoch + 1)
            return found

    return loop(DataLoader(dataset(), 4, sampler=Plain(dataset(), 2, 0)), seed=1)


class Bucketed(BatchSampler):
    """Batches of varying size, in an order drawn by Python's generator."""

    def __iter__(self):
        indices = list(range(22))
        random.shuffle(indices)
        while indices:
            size = random.randint(1, 4)
            yield indices[:size]
            indices = indices[size:]


@row("a batch sampler that draws while it runs", "position", "order")
def bucketed() -> Loop:
    return loop(DataLoader(dataset(), batch_sampler=Bucketed(SequentialSampler(dataset()), 4, False)))


class Stream(IterableDataset):
    """Items one after the other, from a shuffle buffer that draws from a generator of its own."""

    def __init__(self) -> None:
        self.data = dataset()
        self.generator = torch.Generator().manual_seed(8)

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        buffer: list[Any] = []
        for index in range(first, len(self.data), step):
            buffer.append(self.data[index])
            if len(buffer) > 5:
                yield buffer.pop(int(torch.randint(len(buffer), (1,), generator=self.generator)))
        yield from buffer


@row("IterableDataset with a shuffle buffer", "position", "order")
def iterable() -> Loop:
    return loop(DataLoader(Stream(), 4))


@row("IterableDataset, two workers", "position")
def iterable_workers() -> Loop:
    return loop(DataLoader(Stream(), 4, num_workers=2))


class Drawing(Dataset):
    """Noise from a NumPy generator of its own, indices from one of Python's."""

    def __init__(self) -> None:
        self.data, self.noise, self.pick = dataset(), np.random.default_rng(3), random.Random(3)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[self.pick.randrange(22)]
        return x + torch.from_numpy(self.noise.standard_normal(8)).float(), y


@row("a dataset that draws from generators of its own (NumPy, Python)", "own generators", "position")
def drawing() -> Loop:
    return loop(DataLoader(Drawing(), 4))


class DrawingLate(Drawing):
    """Makes its generator with the first item: a fresh process has none when it resumes."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = None

    def __getitem__(self, index: int) -> Any:
        if self.noise is None:
            self.noise = np.random.default_rng(3)
        return super().__getitem__(index)


@row("a dataset that makes its generator with the first item", "own generators", "position")
def drawing_late() -> Loop:
    return loop(DataLoader(DrawingLate(), 4))


class Augmented(Dataset):
    """Noise on every item."""

    def __init__(self) -> None:
        self.data = dataset()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        x, y = self.data[index]
        return x + torch.randn(8) * random.random(), y


@row("augmentation in the trainer's process", *ALL)
def augmented() -> Loop:
    return loop(DataLoader(Augmented(), 4, shuffle=True))


@row(
    "augmentation in workers, saved at epoch ends", "generators after iter",
    note="in the middle of an epoch it is not: a worker's generators begin anew with it", steps=20, first_kill=13,
)  # fmt: skip
def augmented_workers() -> Loop:
    found = loop(DataLoader(Augmented(), 4, shuffle=True, num_workers=2))
    found.options["every"] = 6
    return found


@row("a list of batches", "position")
def list_of_batches() -> Loop:
    return loop(list(DataLoader(dataset(), 4)))


class Remembering:
    """A loader that saves its own position, as StatefulDataLoader does."""

    def __init__(self) -> None:
        self.data, self.position, self.resumed = dataset(), 0, False

    def __iter__(self):
        self.position = self.position if self.resumed else 0
        self.resumed = False
        while self.position < 20:
            self.position += 4
            yield self.data[self.position - 4 : self.position]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position, self.resumed = state["position"], True


@row("a loader with state_dict and load_state_dict", "loader's own state")
def remembering() -> Loop:
    return loop(Remembering())
