"""ckptd: its own interface, and torch.distributed.checkpoint through it."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed.checkpoint as dcp

import ckptd
from ckptd.torch.dcp import Stager, StorageReader, StorageWriter

from .base import Adapter, Place, Saving

_JOB = "peers"
_PATIENCE = 600.0
_POLL_SECONDS = 0.002


class Ckptd(Adapter):
    """ckptd.Checkpointer with its defaults. A save is durable when it is committed: it syncs files and folders."""

    distribution = "ckptd"
    storages_stay = False

    def __init__(self, state: Any, place: Place) -> None:
        super().__init__(state, place)
        trained = {"model": state.parameters, "optim": state.optimizer}
        self._checkpointer = ckptd.Checkpointer(
            trained, job=_JOB, agent=place.socket, on_error="raise", storages_stay=self.storages_stay
        )
        if not place.restoring:
            self._checkpointer.restore()
            self._begin()

    def _begin(self) -> None:
        """One step, at which the agent prepares memory. Hooks have fired: what the optimizer updates is lazy."""
        self.state.optimizer.step()
        self._checkpointer.step(0)
        deadline = time.monotonic() + _PATIENCE
        while not self._checkpointer._session.info().ready and time.monotonic() < deadline:
            time.sleep(0.01)
        self.state.fill(0)

    def tick(self, updates: int) -> None:
        self._checkpointer.step(updates + 1)

    def save(self, updates: int) -> Saving:
        save = self._checkpointer.save(updates + 1)
        return Saving(lambda: self._wait(save), capture=lambda: self._capture(save))

    @staticmethod
    def _capture(save: ckptd.Save) -> None:
        """Asked, not waited for: that would be at the gate, which is the trainer's to do."""
        while save.state == "capturing":
            time.sleep(_POLL_SECONDS)

    @staticmethod
    def _wait(save: ckptd.Save) -> None:
        if not save.durable(_PATIENCE):
            raise RuntimeError(f"{save} is not durable within {_PATIENCE:.0f} s")

    def gate(self) -> None:
        self._checkpointer.gate()

    def restore(self, updates: int) -> None:
        step = self._checkpointer.restore()
        if step != updates + 1:
            raise RuntimeError(f"step {step} was restored, not {updates + 1}")

    def close(self) -> None:
        self._checkpointer.close(0)


class CkptdStays(Ckptd):
    """The same with the promise that memory is not freed before the gate."""

    storages_stay = True


class CkptdCopies(Ckptd):
    """Until another node's agent has it in memory, and checked it."""

    @staticmethod
    def _wait(save: ckptd.Save) -> None:
        if not save.protected(_PATIENCE):
            raise RuntimeError(f"{save} is not protected within {_PATIENCE:.0f} s")


class CkptdDcp(Adapter):
    """dcp.save with ckptd's storage writer: everything in the call."""

    distribution = "ckptd"
    group = True

    def __init__(self, state: Any, place: Place) -> None:
        super().__init__(state, place)
        self._writer = None if place.restoring else StorageWriter(_JOB, agent=place.socket)

    def save(self, updates: int) -> Saving:
        dcp.save(self.state.tensors, checkpoint_id=f"step-{updates + 1}", storage_writer=self._writer)
        return Saving()

    def restore(self, updates: int) -> None:
        reader = StorageReader(_JOB, agent=self.place.socket, storage=str(self.place.folder))
        if reader.newest() != updates + 1:
            raise RuntimeError(f"step {reader.newest()} is the newest, not {updates + 1}")
        dcp.load(self.state.tensors, storage_reader=reader)
        reader.close(0)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close(0)


class CkptdDcpStaged(CkptdDcp):
    """dcp.async_save with ckptd's storage writer and stager: the copy goes on beside training."""

    _staged: Any = None

    def save(self, updates: int) -> Saving:
        answer = dcp.async_save(
            self.state.tensors,
            checkpoint_id=f"step-{updates + 1}",
            storage_writer=self._writer,
            async_stager=Stager(),
        )
        self._staged = answer.staging_completion
        return Saving(answer.upload_completion.result, capture=self._staged.result)

    def gate(self) -> None:
        if self._staged is not None:
            self._staged.result()
            self._staged = None
