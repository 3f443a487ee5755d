"""No peer, but the limit of every asynchronous capture: a plain copy of the same bytes beside training."""

from __future__ import annotations

import threading
from typing import Any

import torch

from .base import Adapter, Place, Saving


class Copy(Adapter):
    """A thread copies tensor by tensor into memory that is there already. Never durable."""

    def __init__(self, state: Any, place: Place) -> None:
        super().__init__(state, place)
        self._copies = [torch.zeros_like(tensor).fill_(1.0) for tensor in state.tensors.values()]
        self._thread: threading.Thread | None = None

    def save(self, updates: int) -> Saving:
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()
        return Saving(self._thread.join, capture=self._thread.join)

    def _copy(self) -> None:
        for copy, tensor in zip(self._copies, self.state.tensors.values()):
            copy.copy_(tensor)

    def gate(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
