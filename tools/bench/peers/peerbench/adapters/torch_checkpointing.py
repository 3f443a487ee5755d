"""torch_checkpointing (meta-pytorch): a copy beside training, a process of its own writes, nobody syncs."""

from __future__ import annotations

from typing import Any

from torch_checkpointing import CheckpointManager
from torch_checkpointing.barriers import TCPStoreBarrierConfig
from torch_checkpointing.checkpoint_writer import CheckpointWriterConfig
from torch_checkpointing.config import AsyncCheckpointSaverConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

from .base import Adapter, Place, Saving

_BARRIER_SECONDS = 60


def _configuration(place: Place) -> CheckpointManager.Config:
    """Its defaults without an accelerator, but for O_DIRECT: its writes are not aligned, ext4 and XFS refuse them."""
    barrier = None
    if place.ranks > 1:
        barrier = TCPStoreBarrierConfig(
            timeout_barrier_init_sec=_BARRIER_SECONDS,
            use_checkpoint_barrier_tcpstore_libuv=True,
            tcpstore_port=place.port,
            master_address="127.0.0.1",
        )
    saver = AsyncCheckpointSaverConfig(writer_config=CheckpointWriterConfig(barrier_config=barrier))
    return CheckpointManager.Config(save=saver, storage_config=LocalFileSystemStorageConfig(use_direct_io=False))


class TorchCheckpointing(Adapter):
    """CheckpointManager; its lock keeps updates away from the copy."""

    distribution = "torch_checkpointing"

    def __init__(self, state: Any, place: Place) -> None:
        super().__init__(state, place)
        self._manager = CheckpointManager(_configuration(place))

    def save(self, updates: int) -> Saving:
        path = self.path(updates)
        future = self._manager.save(str(path), {"state": self.state.tensors})
        return Saving(future.result, [path], self.gate)

    def gate(self) -> None:
        with self._manager.lock():  # its writer is the copy, which begins in save()
            pass

    def restore(self, updates: int) -> None:
        self._manager.load(str(self.path(updates)), into={"state": self.state.tensors}, strict=True)

    def close(self) -> None:
        self._manager.close()
