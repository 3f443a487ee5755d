"""Whether a state fits here: a run that exhausts memory or disk says nothing, and may take others with it."""

from __future__ import annotations

import pathlib
import re
import shutil
from dataclasses import dataclass

from .series import GIB, MIB, Size, told

_IN_REGION = 3  # two slots, and the limit's copy
_ON_DISK = 4  # two steps that are kept, one that is written, the limit's file
_OF_RANK = 8 * MIB  # tables, and files in whole huge pages
_OF_TENSOR = 512  # its place in a header, and in ours
_RESERVE = GIB  # of memory, for everybody else


@dataclass(frozen=True)
class Room:
    """Bytes. region: of its tmpfs, whose pages are memory too."""

    memory: int
    region: int
    disk: int


def free(folder: pathlib.Path, region: pathlib.Path) -> Room:
    """What there is now."""
    found = re.search(r"MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())
    memory = int(found[1]) << 10 if found else 0
    return Room(memory, shutil.disk_usage(region).free, shutil.disk_usage(folder).free)


def needed(size: Size) -> Room:
    """The most that a case takes."""
    image = size.nbytes + size.ranks * (size.tensors * _OF_TENSOR + _OF_RANK)
    region = _IN_REGION * image
    return Room(region + image + _RESERVE, region, _ON_DISK * image)


def lacks(need: Room, there: Room) -> str:
    """Why it does not fit; "": it does."""
    for name, wanted, found in (("memory", need.memory, there.memory),
                                ("the region's tmpfs", need.region, there.region),
                                ("disk", need.disk, there.disk)):  # fmt: skip
        if wanted > found:
            return f"needs {told(wanted)} of {name}, {told(found)} are free"
    return ""
