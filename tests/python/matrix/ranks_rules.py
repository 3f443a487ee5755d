"""The rules that only runs of several ranks show, with their switches; see `rules.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ckptd import checkpointer, names, placement

from .rules import Rule

RANK_RULES: dict[str, Rule] = {}


def rule(name: str, sentence: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Makes the decorated function the switch of a new rule."""

    def add(switch_off: Callable[[], None]) -> Callable[[], None]:
        RANK_RULES[name] = Rule(sentence, switch_off)
        return switch_off

    return add


@rule("local shards", "a DTensor is filled where its local tensor is")
def _local_shards() -> None:
    find = placement.leaves

    def copies(name: str, tensor: torch.Tensor, **more: Any) -> list[Any]:
        found = find(name, tensor, **more)
        return [leaf._replace(tensor=leaf.tensor.clone()) if leaf.path else leaf for leaf in found]

    placement.leaves = copies


@rule("state as DTensors", "optimizer state that is not there yet is made as a DTensor, from the checkpoint")
def _state_as_dtensors() -> None:
    new = placement.Plan.new_dtensor

    def zeros(self: Any, name: str, parameter: Any, wanted: Any) -> Any:
        made = torch.zeros_like(new(self, name, parameter, wanted))
        self.targets.pop()
        return made

    placement.Plan.new_dtensor = zeros


@rule("canonical names", "what wraps a model is not in the names")
def _canonical_names() -> None:
    names.canonical = lambda path: path


@rule("own rank", "each rank saves and restores what it has itself")
def _own_rank() -> None:
    into = placement.Plan.into

    def of_rank_0(self: Any, name: str, tensor: torch.Tensor, shard: Any = None) -> None:
        before = len(self.targets)
        into(self, name, tensor, shard)
        if checkpointer.place(None, None).rank:
            for _, target in self.targets[before:]:
                target.detach().zero_()
            del self.targets[before:]

    placement.Plan.into = of_rank_0
