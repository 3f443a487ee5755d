"""lm-resiliency (GEMINI): on a CPU a copy in the call, kept in memory and sent to a paired rank; a thread writes."""

from __future__ import annotations

from typing import Any

from lm_resiliency.checkpointing.config import InMemoryCkptConfig
from lm_resiliency.checkpointing.manager import InMemoryCheckpointManager

from .base import Adapter, Place, Saving

_JOB = "peers"
_PATIENCE = 600.0


class LmResiliency(Adapter):
    """Every save is flushed to the disk, with its files synced. One rank has no pair."""

    distribution = "lm-resiliency"
    group = True

    def __init__(self, state: Any, place: Place) -> None:
        super().__init__(state, place)
        configuration = InMemoryCkptConfig(disk_folder=str(place.folder), run_id=_JOB, pin_memory=False)
        self._manager = InMemoryCheckpointManager(configuration)

    def save(self, updates: int) -> Saving:
        step = updates + 1  # it takes none below 1
        self._manager.save(dict(self.state.tensors), step)
        return Saving(lambda: self._flush(step), [self._manager._disk._folder])

    def _flush(self, step: int) -> None:
        self._manager.finalize_replication()
        self._manager.flush_to_disk(step)
        self._manager._disk.wait()
        if self._manager._disk.latest_flushed_step != step:
            raise RuntimeError(f"step {step} was not flushed")

    def gate(self) -> None:
        self._manager.maybe_wait()

    def restore(self, updates: int) -> None:
        found = self._manager.load()
        if found is None or found[1] != updates + 1:
            raise RuntimeError(f"{found and found[1]} was restored, not step {updates + 1}")
        self.copy_in(found[0])

    def close(self) -> None:
        self._manager.close()


class LmResiliencyCopies(LmResiliency):
    """Until the paired rank has it in memory. One rank has no pair."""

    def save(self, updates: int) -> Saving:
        step = updates + 1
        self._manager.save(dict(self.state.tensors), step)
        return Saving(lambda: self._replicated(step))

    def _replicated(self, step: int) -> None:
        if not self._manager.finalize_replication(_PATIENCE):
            raise RuntimeError(f"step {step} has no complete replica")
