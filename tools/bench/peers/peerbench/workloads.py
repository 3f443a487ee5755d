"""What is saved: how many ranks, how many bytes in how many tensors each."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

_UNITS = {None: 0, "KiB": 10, "MiB": 20, "GiB": 30}
_TENSORS = 32  # where a workload names no number


def size(text: str) -> int:
    """Bytes of "256MiB", "1GiB" or a number."""
    found = re.fullmatch(r"(\d+)\s*([KMG]iB)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: a size such as 256MiB or 1GiB")
    return int(found[1]) << _UNITS[found[2]]


@dataclass(frozen=True)
class Workload:
    """`tensors` of float32, equally long, on each of `ranks`; `bytes_each`: of one rank."""

    name: str
    ranks: int
    bytes_each: int
    tensors: int

    @property
    def elements(self) -> int:
        """Of one tensor."""
        return max(self.bytes_each // self.tensors // 4, 1)

    @property
    def nbytes(self) -> int:
        """Of all tensors of all ranks."""
        return self.ranks * self.tensors * self.elements * 4


def workload(text: str) -> Workload:
    """From "2GiB/32" (one rank), "8x256MiB" or "8x256MiB/32"."""
    found = re.fullmatch(r"(?:(\d+)x)?([^x/]+)(?:/(\d+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: a workload such as 2GiB/32 or 8x256MiB")
    ranks, tensors = int(found[1] or 1), int(found[3] or _TENSORS)
    if not ranks or not tensors:
        raise argparse.ArgumentTypeError(f"{text!r}: at least one rank and one tensor")
    return Workload(text, ranks, size(found[2]), tensors)


STANDARD = "2GiB/32", "1GiB/20000", "8x256MiB"
