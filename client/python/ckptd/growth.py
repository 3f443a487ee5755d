"""Tensors of another size at every save: each time a new layout, whose memory comes too late for that save.

A new layout now and then is nothing to tell of: the saves behind it succeed. In a row without a save they never do.
"""

from __future__ import annotations

from .state import Column

_ENOUGH = 3  # registrations
_SHOWN = 5


class Growth:
    """The layouts that were registered since a save was started, or found the layout that it needs."""

    def __init__(self) -> None:
        self._layout: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._count = 0
        self._names: set[str] = set()  # what changed with each of them

    def registered(self, columns: list[Column]) -> None:
        """Another layout, or the same elsewhere."""
        before, self._layout = self._layout, {column.name: (column.dtype, column.shape) for column in columns}
        changed = _changed(before, self._layout)
        again = self._names & changed
        self._names, self._count = (again, self._count + 1) if again else (changed, 1)

    def ended(self) -> None:
        """A save was started, or needs no new layout."""
        self._names, self._count = set(), 0

    def sentence(self) -> str:
        """What changes its size each time, and what to do; empty when nothing does."""
        if self._count < _ENOUGH:
            return ""
        names, more = sorted(self._names)[:_SHOWN], len(self._names) - _SHOWN
        shown = ", ".join(names) + (f" and {more} more" if more > 0 else "")
        what, them = ("changes its size", "it") if len(names) == 1 else ("change their size", "them")
        return f"{shown} {what} at every save. Next step: keep {them} at one size, or as plain numbers."


def _changed(before: dict[str, tuple[str, tuple[int, ...]]], now: dict[str, tuple[str, tuple[int, ...]]]) -> set[str]:
    """Tensors of another dtype or shape, and what holds those that came or went. Of the first layout, all."""
    if not before:
        return {*now, *map(_holder, now)}
    moved = {_holder(name) for name in before.keys() ^ now.keys()}
    return moved | {name for name in before.keys() & now.keys() if before[name] != now[name]}


def _holder(name: str) -> str:
    return name.rpartition(".")[0] or name
