"""Ways to save beside a training loop: each is asked for a save at the beginning of a step, and passed before the state
changes. No torch before a peer is wanted."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peers import Peers, Saving

OURS = ("ckptd, push", "ckptd, pull")
_SECONDS = 300.0  # that a save may take until it is where it shall be


class Ours:
    """By ckptd. durable: a save is done when it is on the disk, else when it is captured."""

    def __init__(self, checkpointer: Any, durable: bool) -> None:
        self._checkpointer, self._durable = checkpointer, durable
        self._save: Any = None

    def step(self, n: int) -> None:
        """A step without a save."""
        self._checkpointer.step(n)

    def save(self, n: int) -> None:
        self._save = self._checkpointer.save(n)

    def gate(self) -> None:
        """At every step: returns when the state may change, on the stream at least."""
        self._checkpointer.gate()

    def finish(self) -> None:
        """After a step with a save: that one is done."""
        if not self._save.captured(_SECONDS) or self._durable and not self._save.durable(_SECONDS):
            raise RuntimeError(f"{self._save} is not done within {_SECONDS} s")

    def remove(self) -> None:
        """What is not wanted afterwards; nobody measures it."""

    def close(self) -> None:
        self._checkpointer.close(0)


class Others:
    """By `way` of Peers, which is prepared."""

    def __init__(self, peers: Peers, way: str) -> None:
        self._peers, self._way = peers, way
        self._saving: Saving | None = None

    def step(self, n: int) -> None:
        pass

    def save(self, n: int) -> None:
        self._saving = self._peers.begin(self._way)

    def gate(self) -> None:
        if self._saving is not None:
            self._saving.settle()

    def finish(self) -> None:
        self._saving.finish()

    def remove(self) -> None:
        self._saving.remove()
        self._saving = None

    def close(self) -> None:
        self._peers.close()


def peers_of(state: dict[str, Any], folder: str, way: str) -> Others | str:
    """Prepared; or why it cannot be had."""
    from peers import Peers

    peers = Peers(state, pathlib.Path(folder))
    return peers.prepare(way) or Others(peers, way)
