"""Saves that were dropped: counted by reason, and told seldom enough that a log stays readable.

The first of a reason is told. A later one is told as well, with how many came in between, but not before the reason's
time is over: a run of weeks that loses a save again shall not lose it silently. One of another kind, which asks for
something else, is told on its own. TORN comes from the training code itself, and each of them is a step that can never
be resumed at: a minute. What an agent or a storage does may last: an hour.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

_SELDOM = 3600.0  # seconds
_AGAIN = {"TORN": 60.0}


class Drops:
    """clock: seconds, from any start."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._told: dict[tuple[str, str], tuple[float, int]] = {}  # by reason and kind: when, and the count then

    def note(self, reason: str, sentence: str, kind: str = "") -> str | None:
        """Counts one. What is to be told, never the same text twice (Python shows such a warning once); or None."""
        self.counts[reason] += 1
        now, count = self._clock(), self.counts[reason]
        told_at, told_count = self._told.get((reason, kind), (now, 0))
        pause = _AGAIN.get(reason, _SELDOM)
        if told_count and now < told_at + pause:
            return None
        self._told[reason, kind] = now, count
        how_often = f"{count} times by now, {count - told_count - 1} of them not told" if told_count else "the first"
        rule = f"told every {pause:.0f} s at most, Checkpointer.dropped counts"
        return f"ckptd: {reason}: {sentence} ({how_often}; {rule})"
