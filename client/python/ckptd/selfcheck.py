"""When lazy tensors are digested, and what is done with those that broke the promise.

libckpt digests lazy tensors inside `step()` when asked to, and compares with what the copy thread read later: a
difference means that somebody wrote to a tensor between `step()` and the gate. That snapshot is dropped (TORN), the
tensors are named and captured eagerly from then on. The digest reads all lazy bytes once, so it is not free: by default
the first save of a layout is checked, then one in a hundred.
"""

from __future__ import annotations

MODES = ("first", "always", "off")
_SAMPLE = 100
_REMEDY = "If your code updates parameters without a torch optimizer, call ck.gate() before it does."


class SelfCheck:
    """Decides for each save. ValueError for an unknown mode."""

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"selfcheck={mode!r}: one of {', '.join(MODES)}")
        self._mode = mode
        self._saves = 0

    def new_layout(self) -> None:
        """The next save is the first of a layout, or must prove again what the last one could not."""
        self._saves = 0

    def due(self) -> bool:
        """Whether the save that starts now shall be checked."""
        if self._mode == "off":
            return False
        return self._mode == "always" or self._saves % _SAMPLE == 0

    def started(self) -> None:
        """A save was started, not refused."""
        self._saves += 1


def torn_sentence(names: list[str]) -> str:
    """One sentence for the user about tensors that changed before the gate. Without names: the next check is to."""
    if not names:
        return (
            "the save was dropped: tensors changed between step() and the next optimizer step, and which ones is not "
            "known any more; the next save is checked again. " + _REMEDY
        )
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return (
        f"the save was dropped: {shown} changed between step() and the next optimizer step; captured eagerly "
        "from now on. " + _REMEDY
    )
