"""A child that trains model.GPT with ckptd.Checkpointer: the trainer that is killed."""

from __future__ import annotations

import gc
import json
import pathlib
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from child import Port
from loops import LOOPS, Loop
from model import digest_of_all
from sizes import Size

_PREPARE_SECONDS = 60.0
_DURABLE_SECONDS = 120.0


class Trainer:
    """What the messages ask."""

    def __init__(self) -> None:
        self._checkpointer: Any = None
        self._done = 0

    def start(self, size: dict[str, int], device: str, loop: str, every: int, job: str, socket: str) -> dict[str, Any]:
        """Builds everything; with a job also restores it. {skip} where this cannot be run."""
        if device == "cuda" and not torch.cuda.is_available():
            return {"skip": "torch sees no GPU"}
        began = time.monotonic()
        self._size, self._device, self._kind = Size(**size), device, loop
        self._loop = self._build()
        if isinstance(self._loop, str):
            return {"skip": self._loop}
        told = {"torch": torch.__version__, "build_seconds": time.monotonic() - began}
        return told | (self._restore(job, socket, every) if job else {"step": 0})

    def _build(self) -> Loop | str:
        return LOOPS[self._kind](self._size, self._device)

    def _restore(self, job: str, socket: str, every: int) -> dict[str, Any]:
        import ckptd

        training = self._loop.training
        ckptd.lazy(training.model)  # written after the gate of the optimizer's step
        where = {name: tensor.data_ptr() for name, tensor in training.tensors()}
        self._checkpointer = ckptd.Checkpointer(training.state, job=job, every=every, agent=socket)
        self._loop.attach(self._checkpointer)
        self._done = self._checkpointer.restore()
        training.synchronize()
        found = self._checkpointer.restored
        moved = [name for name, tensor in training.tensors() if where.get(name, tensor.data_ptr()) != tensor.data_ptr()]
        elsewhere = [name for name, tensor in training.tensors() if tensor.device.type != self._device and tensor.dim()]
        return {"step": self._done, "source": found.source, "restore_seconds": found.seconds, "moved": moved[:3],
                "skipped": found.skipped[:3], "on_another_device": elsewhere[:3]}  # fmt: skip

    def train(self, to: int) -> Iterator[dict[str, Any]]:
        """To step `to`; tells each step when the save that may have begun with it is at its beginning."""
        first = True
        while self._done < to:
            began = time.monotonic()
            loss = self._loop.step(self._done)
            self._done += 1
            told = self._told(self._checkpointer.step(self._done)) if self._checkpointer else {}
            if first and self._checkpointer:
                self._await_memory()
            first = False
            yield {"step": self._done, "loss": float(loss).hex(), "seconds": time.monotonic() - began, **told}

    def _told(self, save: Any) -> dict[str, Any]:
        told = {"captured": self._checkpointer._session.info().captured_step}
        return told | ({"save": save.dropped_because or save.state} if save is not None else {})

    # A save finds no room before the agent has made it; nothing would be there to resume from.
    def _await_memory(self) -> None:
        deadline = time.monotonic() + _PREPARE_SECONDS
        while not self._checkpointer._session.info().ready and time.monotonic() < deadline:
            time.sleep(0.005)

    def digest(self, path: str) -> dict[str, Any]:
        """Of all tensors; those of each go to a file."""
        found = self._loop.training.digests()
        pathlib.Path(path).write_text(json.dumps(found))
        return {"digest": digest_of_all(found), "state_bytes": self._loop.training.state_bytes()}

    def again(self, to: int) -> dict[str, Any]:
        """The losses of the first steps of a run anew in this process: whether torch repeats itself."""
        self._loop.close()
        self._loop = None
        gc.collect()
        self._loop = self._build()
        return {"losses": [float(self._loop.step(n)).hex() for n in range(to)]}

    def ungated(self) -> dict[str, Any]:
        """Saves with an update but no gate between them: what became of each.

        The first is proven by the self-check, the second trusted because gates were seen before, the third held back
        for its gate, which the fourth finds missing.
        """
        first = self._done + 1
        self._loop.step(self._done)
        self._checkpointer.step(first)
        self._await_memory()
        saves = []
        for n in range(first, first + 4):
            self._loop.replay_without_gate(n)
            saves.append(self._checkpointer.save(n + 1))
            self._loop.training.synchronize()
            time.sleep(0.2)  # so that it has been copied, and is held back for its gate alone
        return {"dropped_because": [save.dropped_because for save in saves]}

    def finish(self) -> dict[str, Any]:
        """Waits until the last save is on storage."""
        began = time.monotonic()
        dropped = dict(self._checkpointer.dropped)
        durable = self._checkpointer.close(_DURABLE_SECONDS)
        return {"durable": durable, "durable_seconds": time.monotonic() - began, "dropped": dropped}


if __name__ == "__main__":
    warnings.simplefilter("always")  # to children.log
    trainer = Trainer()
    Port().serve({name: getattr(trainer, name) for name in ("start", "train", "digest", "again", "ungated", "finish")})
