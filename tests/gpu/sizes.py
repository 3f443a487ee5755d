"""How large the GPT of these tests is. No torch: the process that runs the parts reads this."""

from __future__ import annotations

import os
import pathlib
from dataclasses import asdict, dataclass, replace
from typing import Any

from results import Skip

BYTES_A_PARAMETER = 14  # bf16 weight; master weight and two moments in fp32
SLOTS = 3  # images in the agent's memory: the last one, the one on its way to storage, the next one
_SPARE = 0.9  # of what is free


@dataclass(frozen=True)
class Size:
    """heads divides width. micro: sequences of one forward and backward pass."""

    width: int
    heads: int
    layers: int
    words: int
    length: int
    micro: int

    def parameters(self) -> int:
        """Of model.GPT."""
        block = 12 * self.width**2 + 13 * self.width
        return (self.words + self.length + 2) * self.width + self.layers * block

    def state_bytes(self) -> int:
        """Without what is small: counters, generators."""
        return self.parameters() * BYTES_A_PARAMETER

    def values(self) -> dict[str, Any]:
        return asdict(self)


SIZES = {
    "full": Size(width=1536, heads=12, layers=29, words=32768, length=512, micro=8),
    "middle": Size(width=1024, heads=16, layers=12, words=32768, length=512, micro=8),
    "small": Size(width=512, heads=8, layers=8, words=8192, length=256, micro=4),
    "tiny": Size(width=64, heads=4, layers=2, words=512, length=32, micro=2),
}


def fitting(size: Size, memory: pathlib.Path) -> Size:
    """`size`, with fewer layers where the tmpfs would not hold its images. Skip when no layer fits."""
    found = os.statvfs(memory)
    room = int(found.f_bavail * found.f_frsize * _SPARE) // SLOTS
    for layers in range(size.layers, 0, -1):
        fewer = replace(size, layers=layers)
        if fewer.state_bytes() <= room:
            return fewer
    raise Skip(f"{memory} has room for images of {room} bytes, one layer needs {replace(size, layers=1).state_bytes()}")
