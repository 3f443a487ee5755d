"""What the loop asks of a peer, and what most of them share."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ..state import State


@dataclass(frozen=True)
class Place:
    """Where a rank of a job works. folder: on the disk that is measured, shared by the ranks; socket: of ckptd's agent;
    port: free, on the loopback; restoring: another process has saved, this one restores."""

    rank: int
    ranks: int
    folder: pathlib.Path
    socket: str
    port: int
    restoring: bool


class Saving:
    """A save whose call has returned. beside: it goes on beside training.

    wait: returns when its peer says that it is there. unsynced: what nobody has fsynced then. capture: returns when the
    state may change; None: it may at once. All are called from another thread than the trainer's."""

    def __init__(
        self, wait: Callable[[], object] | None = None, unsynced: Iterable[pathlib.Path] = (),
        capture: Callable[[], object] | None = None,
    ) -> None:  # fmt: skip
        self.beside = wait is not None
        self._wait, self._unsynced, self.capture = wait, tuple(unsynced), capture

    def wait(self) -> None:
        """Until its peer says that it is there: in files that may be in the page cache alone, where it syncs none."""
        if self._wait is not None:
            self._wait()

    def sync(self) -> None:
        """Then: until it is on the disk, or where it will stay."""
        for path in self._unsynced:
            fsync(path)


class Adapter:
    """One peer. distribution: the package whose version is told. group: it needs torch.distributed, always."""

    distribution = "torch"
    group = False

    def __init__(self, state: State, place: Place) -> None:
        """Makes what a job makes once."""
        self.state, self.place = state, place

    def save(self, updates: int) -> Saving:
        """The call of a save of the state, which has had so many updates."""
        raise NotImplementedError

    def tick(self, updates: int) -> None:
        """A step without a save begins."""

    def gate(self) -> None:
        """At every step: returns when the state may change."""

    def restore(self, updates: int) -> None:
        """Brings the newest save, which has had so many updates, into the tensors of the state."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what `__init__` made."""

    def path(self, updates: int, suffix: str = "") -> pathlib.Path:
        """Of a save of this job."""
        return self.place.folder / f"save-{updates:06}{suffix}"

    def copy_in(self, found: dict[str, object]) -> None:
        """Loaded tensors into the trainer's."""
        for name, tensor in self.state.tensors.items():
            tensor.copy_(found[name])


def fsync(path: pathlib.Path) -> None:
    """A file or a folder with everything in it, and the folder above. Other ranks may still rename what is inside."""
    for each in path.rglob("*") if path.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            _fsync_one(each)
    _fsync_one(path)
    _fsync_one(path.parent)


def _fsync_one(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
