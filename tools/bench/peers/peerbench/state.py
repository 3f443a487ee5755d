"""The state that is trained and saved, and what it must be: known for every rank and number of updates."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_PRIME = 65_521  # the values repeat after so many; whole numbers that float32 holds exactly
_BETWEEN_TENSORS, _BETWEEN_RANKS = 7_919, 104_729


class AddOne(torch.optim.Optimizer):
    """Adds 1.0 to every element: an update of every byte, whose result tells how many there were."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            torch._foreach_add_(group["params"], 1.0)


class State:
    """`tensors` of `elements` on one rank. Names differ between ranks, so that nobody takes them for replicas."""

    def __init__(self, rank: int, tensors: int, elements: int) -> None:
        self._pattern = torch.arange(elements + _PRIME, dtype=torch.int32).remainder_(_PRIME).to(torch.float32)
        self._elements = elements
        self._begins = [(_BETWEEN_TENSORS * i + _BETWEEN_RANKS * rank) % _PRIME for i in range(tensors)]
        names = [f"r{rank:02}_t{i:05}" for i in range(tensors)]
        self.parameters = torch.nn.ParameterDict({name: torch.empty(elements) for name in names})
        self.tensors = {name: parameter.data for name, parameter in self.parameters.items()}
        self.optimizer = AddOne(self.parameters.values())

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return len(self._begins) * self._elements * 4

    def fill(self, updates: int) -> None:
        """As it is after so many updates."""
        for tensor, begin in zip(self.tensors.values(), self._begins):
            torch.add(self._pattern[begin : begin + self._elements], float(updates), out=tensor)

    def clear(self) -> None:
        """Fills it with what no number of updates gives."""
        for tensor in self.tensors.values():
            tensor.fill_(-1.0)

    def differs(self, updates: int) -> str:
        """Name of the first tensor that is not as after so many updates; "" when all are."""
        expected = torch.empty(self._elements)
        for (name, tensor), begin in zip(self.tensors.items(), self._begins):
            torch.add(self._pattern[begin : begin + self._elements], float(updates), out=expected)
            if not torch.equal(tensor, expected):
                return name
        return ""
