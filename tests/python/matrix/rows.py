"""What a row of the matrix is: a training loop, the rules of ckptd it stands for, and its verdict.

A row is a function that builds the loop anew in each process; it names its rules, which `rules.py` can switch off one
by one, and what is to come of it: bit-exact, or the sentence with which ckptd refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Loop:
    """A training loop under test.

    state: what ckptd.Checkpointer is given; the harness adds the data. train: one step on a batch, gives the loss.
    loader, seed: the data, for ckptd.batches. before: called at the beginning of each step with its number, while the
    last save is being captured. direct: the loader itself is in the state, not ckptd.batches(loader). resumed: what a script that resumes does before `restore()`. options: more arguments of
    the Checkpointer.
    """

    state: Any
    train: Callable[[Any], Any]
    loader: Any = None
    seed: int | None = None
    before: Callable[[int], None] | None = None
    resumed: Callable[[], None] | None = None
    direct: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    checkpointer: Any = None  # set by the harness; None in the undisturbed run


@dataclass
class Row:
    """One row of the table. refused: part of the sentence, or empty for bit-exact. note: a condition, for readers."""

    name: str
    group: str
    build: Callable[[], Loop]
    rules: tuple[str, ...]
    refused: str = ""
    note: str = ""
    steps: int = 9
    first_kill: int = 4
    dropped: tuple[str, ...] = ()  # reasons for which its saves may be dropped
    warned: str = ""  # part of a warning that must have been given
    skip: Callable[[], str | None] | None = None  # why this machine cannot run it
    imports: tuple[str, ...] = ()  # what takes seconds to import, and starts no thread


ROWS: dict[str, Row] = {}


def row(name: str, *rules: str, **more: Any) -> Callable[[Callable[[], Loop]], Callable[[], Loop]]:
    """Makes the decorated function, which builds a Loop, a row of the table. rules: keys of `rules.RULES`."""

    def add(build: Callable[[], Loop]) -> Callable[[], Loop]:
        assert name not in ROWS, name
        ROWS[name] = Row(name, build.__module__.rpartition("_")[2], build, rules, **more)
        return build

    return add


class Net(nn.Module):
    """Eight numbers in, four out; `extra` stands in the middle."""

    def __init__(self, *extra: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.extra = nn.ModuleList(extra)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        for module in self.extra:
            x = module(x)
        return self.last(x)


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss that every weight moves."""
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)


def updating(model: nn.Module, *steppers: Any) -> Callable[[Any], torch.Tensor]:
    """The plain training step: backward, then `step()` of each stepper; the first is the optimizer."""

    def train(batch: Any) -> torch.Tensor:
        loss = loss_of(model, batch)
        steppers[0].zero_grad()
        loss.backward()
        for stepper in steppers:
            stepper.step()
        return loss

    return train


def dataset(count: int = 22) -> TensorDataset:
    """The same numbers in every process; batches of four end in the middle of an epoch."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(count, 8, generator=generator)
    return TensorDataset(x, torch.randint(4, (count,), generator=generator))


def shuffled(**options: Any) -> DataLoader:
    """The data of rows that are not about data."""
    return DataLoader(dataset(), 4, shuffle=True, **options)
