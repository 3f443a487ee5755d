"""torch.distributed.checkpoint: save, and async_save by thread and by process."""

from __future__ import annotations

from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from .base import Adapter, Saving


class Dcp(Adapter):
    """dcp.save: everything in the call. It syncs its files, not the folder."""

    group = True

    def save(self, updates: int) -> Saving:
        path = self.path(updates)
        dcp.save(self.state.tensors, checkpoint_id=path)
        return Saving(unsynced=[path])

    def restore(self, updates: int) -> None:
        dcp.load(self.state.tensors, checkpoint_id=self.path(updates))


class DcpThread(Dcp):
    """dcp.async_save as it comes: a copy in the call, a thread of the trainer writes."""

    how: dict[str, Any] = {"async_checkpointer_type": AsyncCheckpointerType.THREAD}

    def save(self, updates: int) -> Saving:
        path = self.path(updates)
        future = dcp.async_save(self.state.tensors, checkpoint_id=path, **self.how)
        return Saving(future.result, [path])


class DcpProcess(DcpThread):
    """A copy in the call, a process of its own writes."""

    how = {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}


class DcpStaged(Dcp):
    """The copy too goes on beside training, into memory that is shared with the process and used again.

    Pinned memory and non-blocking copies, the other two options of the stager, need an accelerator (torch 2.10)."""

    def __init__(self, state: Any, place: Any) -> None:
        super().__init__(state, place)
        self._stager = DefaultStager(StagingOptions(False, True, True, False))
        self._staged: Any = None

    def save(self, updates: int) -> Saving:
        path = self.path(updates)
        answer = dcp.async_save(
            self.state.tensors,
            checkpoint_id=path,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self._stager,
        )
        self._staged = answer.staging_completion
        return Saving(answer.upload_completion.result, [path], self._staged.result)

    def gate(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None

    def close(self) -> None:
        self._stager.close()
