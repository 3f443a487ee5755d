"""The same state saved by what people use today: torch.save, and torch.distributed.checkpoint.async_save."""

from __future__ import annotations

import os
import pathlib
import shutil
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

_KINDS = {
    "dcp.async_save, thread": AsyncCheckpointerType.THREAD,
    "dcp.async_save, process": AsyncCheckpointerType.PROCESS,
}
PINNED = "dcp.async_save, process, pinned staging"


class Peers:
    """folder: on the disk that is written to."""

    def __init__(self, state: dict[str, torch.Tensor], folder: pathlib.Path) -> None:
        self._state = {name: tensor.detach() for name, tensor in state.items()}
        self._folder = folder
        if not dist.is_initialized():
            dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{folder}/rendezvous")

    def save(self, way: str) -> Iterator[dict[str, Any]]:
        """{blocked_seconds} when the call returns, {staged_seconds} when the state may change, where that is later,
        {done_seconds} when it is on the disk; or {skip}. What it wrote is removed."""
        path = self._folder / "peer"
        try:
            if way == "torch.save":
                yield from self._plain(path)
            elif way == PINNED:
                yield from self._pinned(path)
            else:
                yield from self._async(path, async_checkpointer_type=_KINDS[way])
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _plain(self, path: pathlib.Path) -> Iterator[dict[str, Any]]:
        path.mkdir()
        began = time.perf_counter()
        torch.save(self._state, path / "state.pt")
        yield {"blocked_seconds": time.perf_counter() - began}
        yield self._done(path, began)

    def _async(self, path: pathlib.Path, **how: Any) -> Iterator[dict[str, Any]]:
        if how["async_checkpointer_type"] is AsyncCheckpointerType.PROCESS:
            self._start_process()
        began = time.perf_counter()
        answer = dcp.async_save(self._state, checkpoint_id=path, **how)
        yield {"blocked_seconds": time.perf_counter() - began}
        if hasattr(answer, "staging_completion"):
            answer.staging_completion.result()
            yield {"staged_seconds": time.perf_counter() - began}
            answer = answer.upload_completion
        answer.result()
        yield self._done(path, began)

    def _pinned(self, path: pathlib.Path) -> Iterator[dict[str, Any]]:
        try:
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        except ImportError:
            yield {"skip": f"torch {torch.__version__} has no DefaultStager"}
            return
        if not torch.accelerator.is_available():
            yield {"skip": "pinned staging needs a GPU"}
            return
        stager = DefaultStager(StagingOptions(True, True, True, True))
        stager.stage(self._state).result()  # its memory is made and pinned with the first save
        yield from self._async(path, async_checkpointer_type=AsyncCheckpointerType.PROCESS, async_stager=stager)
        stager.close()

    # It loads torch with the first save.
    def _start_process(self) -> None:
        path = self._folder / "first"
        dcp.async_save(
            {"x": torch.zeros(8)}, checkpoint_id=path, async_checkpointer_type=AsyncCheckpointerType.PROCESS
        ).result()
        shutil.rmtree(path)

    @staticmethod
    def _done(path: pathlib.Path, began: float) -> dict[str, Any]:
        for each in [*path.rglob("*"), path]:
            descriptor = os.open(each, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        return {"done_seconds": time.perf_counter() - began}
