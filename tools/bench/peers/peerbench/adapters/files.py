"""torch.save and safetensors: the call writes the file, nobody syncs it."""

from __future__ import annotations

import pathlib

import torch
from safetensors.torch import load_file, save_file

from .base import Adapter, Saving


class TorchSave(Adapter):
    """torch.save; restored by torch.load(mmap=True), which is the faster way."""

    def save(self, updates: int) -> Saving:
        path = self._file(updates)
        torch.save(self.state.tensors, path)
        return Saving(unsynced=[path])

    def restore(self, updates: int) -> None:
        self.copy_in(torch.load(self._file(updates), mmap=True, weights_only=True))

    def _file(self, updates: int) -> pathlib.Path:
        return self.path(updates, f".rank{self.place.rank}.pt")


class Safetensors(Adapter):
    """safetensors.torch.save_file and load_file."""

    distribution = "safetensors"

    def save(self, updates: int) -> Saving:
        path = self._file(updates)
        save_file(self.state.tensors, path)
        return Saving(unsynced=[path])

    def restore(self, updates: int) -> None:
        self.copy_in(load_file(self._file(updates)))

    def _file(self, updates: int) -> pathlib.Path:
        return self.path(updates, f".rank{self.place.rank}.safetensors")
