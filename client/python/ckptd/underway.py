"""Updates that have begun and not ended: what they write is half new, and is not to be saved.

A save may be asked for inside one, by a signal handler or a closure, or after one that failed (KeyboardInterrupt). The
hooks tell: a pre-hook without its post-hook.
"""

from __future__ import annotations

import weakref
from typing import Any

from .state import State, Table

_SENTENCE = (
    "step {step}: an optimizer's {what} had not ended ({who}), so what it updates may be half new; save when it has. "
    "If it failed, its next {what}() that ends clears this, and so does restore()"
)


class Underway:
    """Which they are. what: the method, as in `gate.Watcher`."""

    def __init__(self) -> None:
        self._begun: dict[tuple[int, str], weakref.ref[Any]] = {}  # a set of weak references costs a step more

    def begin(self, optimizer: Any, what: str) -> None:
        """`optimizer` is about to write."""
        self._begun[id(optimizer), what] = weakref.ref(optimizer)

    def end(self, optimizer: Any, what: str) -> None:
        """It has written all, in this call or in one more after calls that failed."""
        self._begun.pop((id(optimizer), what), None)

    def forget(self) -> None:
        """A restore has written everything."""
        self._begun.clear()

    def any(self) -> bool:
        """Whether there is one, of whatever tensors."""
        return bool(self._begun)

    def sentence(self, step: int, state: State, table: Table) -> str:
        """Why `step` cannot be saved now; empty when nothing of `state` is half new. table: its newest layout."""
        for (_, what), reference in tuple(self._begun.items()):
            optimizer = reference()
            if optimizer is None:  # garbage: training goes on from what it wrote
                continue
            path, kind = state.path_of(optimizer), type(optimizer).__name__
            if path or table.holds_any(_parameters(optimizer)):
                return _SENTENCE.format(step=step, what=what, who=f"{path}, a {kind}" if path else f"a {kind}")
        return ""


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
