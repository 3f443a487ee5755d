"""Checkpointers with postmortem, from their making until close().

What ends without close() shall be captured, although nobody may know of the object any more when the process dies. Its
memory must stay until then, and updates must be seen.
"""

from __future__ import annotations

import warnings
from typing import Any

Place = tuple[str, int, str | None]  # job, rank and socket
_kept: dict[Place, Any] = {}


def keep(place: Place, checkpointer: Any) -> None:
    """Until `forget`."""
    _kept[place] = checkpointer


def forget(place: Place, checkpointer: Any) -> None:
    """Inverse of `keep`; one that is not kept is ignored."""
    if _kept.get(place) is checkpointer:
        del _kept[place]


def make_room(place: Place, stacklevel: int) -> None:
    """Another checkpointer takes this place, as after an exception when the script begins anew: a rank has one.

    What the old one is capturing is finished, for no longer than a gate waits."""
    old = _kept.get(place)
    if old is None:
        return
    if old.alive:
        warnings.warn(
            f"ckptd: postmortem: the checkpointer that was kept for job {place[0]}, rank {place[1]} is closed, because "
            "another one takes its place: its last save counts, and the steps behind that are not captured any more. "
            "Next step: call close() on the old one first, or give the new one another job",
            stacklevel=stacklevel + 1,
        )
    try:
        old.release()
    finally:
        old.close(0)
