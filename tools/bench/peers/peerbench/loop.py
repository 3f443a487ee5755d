"""The training loop of one rank: compute, gate, update of every byte; and a save beside it."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from .adapters.base import Adapter, Saving
from .compute import Compute
from .state import State


class Waiter:
    """Waits on a thread of its own until a save is done. captured (None: with the call), written, seconds: since
    `began`, once it is."""

    def __init__(self, saving: Saving, began: float) -> None:
        self.captured: float | None = None
        self.written: float | None = None
        self.seconds: float | None = None
        self._saving, self._began = saving, began
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        try:
            if self._saving.capture is not None:
                self._saving.capture()
                self.captured = time.perf_counter() - self._began
            self._saving.wait()
            self.written = time.perf_counter() - self._began
            self._saving.sync()
            self.seconds = time.perf_counter() - self._began
        except BaseException as error:
            self._error = error

    def join(self) -> None:
        """Stands still until then."""
        self._thread.join()

    def done(self) -> bool:
        """Raises what the save raised."""
        if self._error is not None:
            raise self._error
        return self.seconds is not None


class Loop:
    """A step ends on all ranks at once, as one with a collective does. group: of the loop alone; None: one rank."""

    def __init__(self, state: State, adapter: Adapter, compute: Compute, group: Any) -> None:
        self._state, self._adapter, self._compute, self._group = state, adapter, compute, group
        self.updates = 0

    def undisturbed(self, count: int) -> float:
        """Mean seconds of so many steps without a save."""
        spent = []
        for _ in range(count):
            began = time.perf_counter()
            self._adapter.tick(self.updates)
            self._rest_of_step()
            self._all_agree(True)
            spent.append(time.perf_counter() - began)
        return statistics.fmean(spent)

    def save(self) -> dict[str, Any]:
        """Steps from the call of a save until the end of the one in which it is done on all ranks.

        blocked: in the call, with the syncing that the call left. gate: waiting before updates. From the call:
        captured: until the state may change; written: until its peer says that it is there; done: until it is durable,
        or where it will stay. wall: of all those `steps`. saved: updates that the saved state has.
        """
        saved, gate, steps, finished = self.updates, 0.0, 0, False
        began = time.perf_counter()
        saving = self._adapter.save(saved)
        waiter = Waiter(saving, began)
        if not saving.beside:
            waiter.join()
        blocked = time.perf_counter() - began
        while not finished:
            if steps:
                self._adapter.tick(self.updates)
            gate += self._rest_of_step()
            steps += 1
            finished = self._all_agree(waiter.done())
        wall = time.perf_counter() - began
        captured = blocked if waiter.captured is None else waiter.captured
        return {"blocked": blocked, "gate": gate, "captured": captured, "written": waiter.written,
                "done": waiter.seconds, "wall": wall, "steps": steps, "saved": saved}  # fmt: skip

    def _rest_of_step(self) -> float:
        """Seconds at the gate."""
        self._compute.run()
        began = time.perf_counter()
        self._adapter.gate()
        waited = time.perf_counter() - began
        self._state.optimizer.step()
        self.updates += 1
        return waited

    def _all_agree(self, answer: bool) -> bool:
        if self._group is None:
            return answer
        count = torch.tensor([int(answer)])
        dist.all_reduce(count, op=dist.ReduceOp.MIN, group=self._group)
        return bool(count.item())
