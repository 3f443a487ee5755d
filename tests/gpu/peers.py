"""The same state saved by what people use today: torch.save, safetensors, torch.distributed.checkpoint.async_save and
torch_checkpointing."""

from __future__ import annotations

import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

THREAD, PROCESS = "dcp.async_save, thread", "dcp.async_save, process"
PINNED = "dcp.async_save, process, pinned staging"


def _nothing() -> None:
    pass


class Saving:
    """A save whose call has returned. settled: returns when the state may change; written: when it is all in files."""

    def __init__(
        self, path: pathlib.Path, settled: Callable[[], object] = _nothing, written: Callable[[], object] = _nothing
    ) -> None:
        self._path, self._settled, self._written = path, settled, written
        self.stages = settled is not _nothing  # the state may change only later than the call returns

    def settle(self) -> None:
        """Returns when the state may change."""
        self._settled()

    def finish(self) -> None:
        """Returns when it is on the disk."""
        self._written()
        for each in [*self._path.rglob("*"), self._path]:
            descriptor = os.open(each, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


class Peers:
    """folder: on the disk that is written to."""

    def __init__(self, state: dict[str, torch.Tensor], folder: pathlib.Path) -> None:
        self._state = {name: tensor.detach() for name, tensor in state.items()}
        self._path = folder / "peer"
        self._folder = folder
        self._stager: Any = None
        self._manager: Any = None
        self._process_runs = False
        if not dist.is_initialized():
            dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{folder}/rendezvous")

    def prepare(self, way: str) -> str:
        """Makes what is made once: processes, pinned memory. Why it cannot be had here; "": it can."""
        return {
            "safetensors": self._prepare_safetensors,
            PROCESS: self._prepare_process,
            PINNED: self._prepare_pinned,
            "torch_checkpointing": self._prepare_torch_checkpointing,
        }.get(way, str)()

    def begin(self, way: str) -> Saving:
        """After `prepare`. The call of a save; returns when it does."""
        return {
            "torch.save": self._torch_save,
            "safetensors": self._safetensors,
            THREAD: lambda: self._async(async_checkpointer_type=AsyncCheckpointerType.THREAD),
            PROCESS: lambda: self._async(async_checkpointer_type=AsyncCheckpointerType.PROCESS),
            PINNED: lambda: self._async(
                async_checkpointer_type=AsyncCheckpointerType.PROCESS, async_stager=self._stager
            ),
            "torch_checkpointing": self._torch_checkpointing,
        }[way]()

    def save(self, way: str) -> Iterator[dict[str, Any]]:
        """{blocked_seconds} when the call returns, {staged_seconds} when the state may change, where that is later,
        {done_seconds} when it is on the disk; or {skip}. What it wrote is removed."""
        why = self.prepare(way)
        if why:
            yield {"skip": why}
            return
        try:
            began = time.perf_counter()
            saving = self.begin(way)
            yield {"blocked_seconds": time.perf_counter() - began}
            saving.settle()
            if saving.stages:
                yield {"staged_seconds": time.perf_counter() - began}
            saving.finish()
            yield {"done_seconds": time.perf_counter() - began}
        finally:
            shutil.rmtree(self._path, ignore_errors=True)
            self.close()

    def close(self) -> None:
        """Gives back what `prepare` made, but for the process that dcp keeps."""
        for held in (self._stager, self._manager):
            if held is not None:
                held.close()
        self._stager = self._manager = None

    def _torch_save(self) -> Saving:
        self._path.mkdir()
        torch.save(self._state, self._path / "state.pt")
        return Saving(self._path)

    @staticmethod
    def _prepare_safetensors() -> str:
        try:
            import safetensors.torch  # noqa: F401
        except ImportError as error:
            return f"no safetensors: {error}"
        return ""

    def _safetensors(self) -> Saving:
        from safetensors.torch import save_file

        self._path.mkdir()
        save_file(self._state, self._path / "state.safetensors")
        return Saving(self._path)

    def _async(self, **how: Any) -> Saving:
        answer = dcp.async_save(self._state, checkpoint_id=self._path, **how)
        if hasattr(answer, "staging_completion"):
            return Saving(self._path, answer.staging_completion.result, answer.upload_completion.result)
        return Saving(self._path, written=answer.result)

    # It loads torch with the first save.
    def _prepare_process(self) -> str:
        path = self._folder / "first"
        if not self._process_runs:
            dcp.async_save(
                {"x": torch.zeros(8)}, checkpoint_id=path, async_checkpointer_type=AsyncCheckpointerType.PROCESS
            ).result()
            shutil.rmtree(path)
        self._process_runs = True
        return ""

    def _prepare_pinned(self) -> str:
        try:
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        except ImportError:
            return f"torch {torch.__version__} has no DefaultStager"
        if not torch.accelerator.is_available():
            return "pinned staging needs a GPU"
        self._stager = DefaultStager(StagingOptions(True, True, True, True))
        self._stager.stage(self._state).result()  # its memory is made and pinned with the first save
        return self._prepare_process()

    # Its O_DIRECT writes are not aligned: ext4 and XFS refuse them (0.1.1).
    def _prepare_torch_checkpointing(self) -> str:
        try:
            from torch_checkpointing import CheckpointManager
            from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig
        except ImportError as error:
            return f"no torch_checkpointing: {error}"
        storage = LocalFileSystemStorageConfig(use_direct_io=False)
        self._manager = CheckpointManager(CheckpointManager.Config(storage_config=storage))
        return ""

    def _torch_checkpointing(self) -> Saving:
        future = self._manager.save(str(self._path), {"state": self._state})
        return Saving(self._path, self._wait_for_lock, future.result)

    def _wait_for_lock(self) -> None:
        with self._manager.lock():
            pass
