"""DLRover's flash checkpoint without dlrover-run: a copy to shared memory in the call, a daemon of rank 0 writes."""

from __future__ import annotations

import time
from typing import Any

from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer, StorageType

from .base import Adapter, Place, Saving

_POLL_SECONDS = 0.005


class DlroverDisk(Adapter):
    """A file for each rank. Done when its tracker names the step. It syncs the tracker alone, and that while empty."""

    distribution = "dlrover"
    storage = StorageType.DISK

    def __init__(self, state: Any, place: Place) -> None:
        super().__init__(state, place)
        self._checkpointer = DdpCheckpointer(str(place.folder), place.ranks, place.ranks)
        self._tracker = place.folder / "dlrover_latest.txt"

    def save(self, updates: int) -> Saving:
        step = updates + 1  # it takes none below 1
        self._checkpointer.save_checkpoint(step, dict(self.state.tensors), storage_type=self.storage)
        if self._checkpointer._engine._cached_step != step:
            raise RuntimeError(f"DLRover skipped the save of step {step}")
        return self._saving(step)

    def _saving(self, step: int) -> Saving:
        return Saving(lambda: self._wait(step), [self.place.folder / str(step), self._tracker])

    def _wait(self, step: int) -> None:
        while not self._tracker.exists() or self._tracker.read_text().strip() != str(step):
            time.sleep(_POLL_SECONDS)

    def restore(self, updates: int) -> None:
        self.copy_in(self._checkpointer.load_checkpoint())


class DlroverMemory(DlroverDisk):
    """Stays in shared memory: never durable, and gone with the job's processes unless dlrover-run holds it."""

    storage = StorageType.MEMORY

    def _saving(self, step: int) -> Saving:
        return Saving()
