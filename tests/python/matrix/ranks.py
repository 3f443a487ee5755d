"""Rows of several ranks: what they have in common.

Each rank is a process of its own over gloo on the loopback interface. The trainer is killed at a random step, one rank
or all of them; each rank is then compared, bit for bit, with the same rank of a run that nobody disturbed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from .rows import Loop, Net, Row, dataset


@dataclass
class RankRow(Row):
    """A row of `ranks` processes."""

    ranks: int = 2
    steps: int = 7
    first_kill: int = 3


RANK_ROWS: dict[str, RankRow] = {}


def rank_row(name: str, ranks: int, *rules: str, **more: Any) -> Callable[[Callable[[], Loop]], Callable[[], Loop]]:
    """As `rows.row`, for a loop of several ranks."""

    def add(build: Callable[[], Loop]) -> Callable[[], Loop]:
        full = f"{name}, {ranks} ranks"
        assert full not in RANK_ROWS, full
        RANK_ROWS[full] = RankRow(full, build.__module__.rpartition("_")[2], build, rules, ranks=ranks, **more)
        return build

    return add


def loop_of(state: Any, train: Callable[[Any], Any], same_data: int = 1, **more: Any) -> Loop:
    """Each rank has its part of the data, or `same_data` of them share one, and generators of its own from here on."""
    torch.manual_seed(50 + dist.get_rank())
    sampler = DistributedSampler(dataset(48), dist.get_world_size() // same_data, dist.get_rank() // same_data, seed=4)
    return Loop(state, train, DataLoader(sampler.dataset, 3, sampler=sampler), seed=3, **more)


def net(*extra: nn.Module) -> Net:
    """Dropout differs by rank; 16 rows shard evenly, the 4 and 5 of the last layers do not."""
    return Net(nn.Dropout(0.2), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 16), *extra)
