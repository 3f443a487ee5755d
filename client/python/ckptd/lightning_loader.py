"""The training loader of a Lightning Trainer, whose iterator can begin in the middle of an epoch.

Lightning makes the iterator when `fit` begins, and again at the beginning of every epoch; it fetches a batch, and calls
`on_train_batch_start`. That is where a step is saved, so the batch that was just fetched must be fetched again by a run
that resumes, with the generators as they were before: a dataset may draw from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from .batches import generator_states, set_epoch, set_generator_states, skipped

_KEPT = 4  # fetches whose generators are kept; Lightning fetches at most one batch ahead


class Loader:
    """Stands for `loader` in a Trainer. What it does not know is the loader's."""

    loader: Any
    _start: Any
    _resume: dict[str, Any] | None
    _handed: int
    _before: deque[tuple[int, Any]]

    def __init__(self, loader: Any) -> None:
        self.__dict__.update(loader=loader, _start=None, _resume=None, _handed=0, _before=deque(maxlen=_KEPT))

    def __getattr__(self, name: str) -> Any:
        if name in ("loader", "state_dict", "load_state_dict"):  # its position is kept here
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__:
            self.__dict__[name] = value
        else:
            setattr(self.loader, name, value)  # Lightning gives it a worker_init_fn

    def __len__(self) -> int:
        return len(self.loader)

    def position(self, batch: int, epoch: int) -> dict[str, Any]:
        """Plain values for `resume_at`: `batch` batches of the epoch are done."""
        before = [states for number, states in self._before if number > batch]
        return {"start": self._start, "batch": batch, "epoch": epoch, "before": before}

    def resume_at(self, position: dict[str, Any]) -> None:
        """The next iterator begins there."""
        self._resume = position

    def __iter__(self) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        self._before.clear()
        if resume is None:
            self._start = generator_states(self.loader)
            self._start["reused"] = getattr(self.loader, "_iterator", None) is not None
            self._handed = 0
            return self._run(iter(self.loader), [])
        self._start, self._handed = resume["start"], resume["batch"]
        set_epoch(self.loader, resume["epoch"])
        rewind = lambda: set_generator_states(self.loader, self._start)  # noqa: E731
        return self._run(skipped(self.loader, self._handed, rewind, self._start["reused"]), list(resume["before"]))

    def _run(self, iterator: Iterator[Any], again: list[dict[str, Any]]) -> Iterator[Any]:
        while True:
            if again:
                set_generator_states(self.loader, again.pop(0))
            self._before.append((self._handed + 1, generator_states(self.loader)))
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._handed += 1
            yield batch
