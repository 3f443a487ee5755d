"""What is measured: series of points, each one run of one case of ckptd-bench."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
_TENSORS = 1024  # of the whole job, where they are not what is varied
_TRIAL_SHRINKS, _TRIAL_POINTS = 256, 3
_TINY = ("commit",)  # cases whose state is as small as it can be: with more bytes they would measure the flush
_TINY_BYTES = 64 * KIB


@dataclass(frozen=True)
class Size:
    """bytes_each, tensors: of one rank. chunk: of the agent; 0: its own choice."""

    bytes_each: int
    tensors: int
    ranks: int = 1
    chunk: int = 0

    @property
    def nbytes(self) -> int:
        """Of the state of all ranks."""
        return self.bytes_each * self.ranks

    def flags(self) -> list[str]:
        """For ckptd-bench."""
        chosen = ["--bytes", str(self.bytes_each), "--tensors", str(self.tensors), "--ranks", str(self.ranks)]
        return [*chosen, "--chunk", str(self.chunk)] if self.chunk else chosen


@dataclass(frozen=True)
class Series:
    """what: is varied, for its axis. nbytes: of all ranks together, the same at every value; 0: they are the value.

    size: of the state at a value, with so many bytes. in_bytes: what the values are.
    """

    what: str
    cases: tuple[str, ...]
    values: tuple[int, ...]
    nbytes: int
    size: Callable[[int, int], Size]
    in_bytes: bool = False


@dataclass(frozen=True)
class Point:
    """One run. value: its place in the series."""

    series: str
    case: str
    value: int
    size: Size


SERIES = {
    "tensors": Series(
        "tensors of one rank",
        ("save.blocked", "register"),
        tuple(10**power for power in range(2, 7)),
        256 * MIB,
        lambda value, nbytes: Size(nbytes, value),
    ),
    "ranks": Series(
        "ranks on one node",
        ("save.captured", "flush.durable", "commit"),
        tuple(1 << power for power in range(7)),
        2 * GIB,
        lambda value, nbytes: Size(nbytes // value, _TENSORS // value, ranks=value),
    ),
    "bytes": Series(
        "bytes of one rank",
        ("save.captured", "flush.durable", "restore.region", "restore.storage"),
        tuple(64 * MIB << power for power in range(0, 10, 2)),
        0,
        lambda value, _: Size(value, _TENSORS),
        in_bytes=True,
    ),
    "chunk": Series(
        "bytes of one chunk (region.chunk_bytes)",
        ("save.captured", "flush.durable", "restore.region", "restore.storage"),
        tuple(64 * KIB << power for power in range(0, 12, 2)),
        GIB,
        lambda value, nbytes: Size(nbytes, _TENSORS, chunk=value),
        in_bytes=True,
    ),
}


def plan(names: Iterable[str], cases: Iterable[str] | None = None, trial: bool = False) -> list[Point]:
    """Points of these series, of these cases alone (None: all). trial: the first of each series, of small states."""
    wanted = None if cases is None else set(cases)
    points = []
    for name in names:
        series = SERIES[name]
        for case in series.cases:
            if wanted is None or case in wanted:
                points += [Point(name, case, value, _fit(case, size)) for value, size in _sizes(series, trial)]
    return points


def _fit(case: str, size: Size) -> Size:
    return replace(size, bytes_each=_TINY_BYTES, tensors=1) if case in _TINY else size


def _sizes(series: Series, trial: bool) -> list[tuple[int, Size]]:
    if not trial:
        return [(value, series.size(value, series.nbytes)) for value in series.values]
    values = series.values[:_TRIAL_POINTS]
    if not series.nbytes:
        values = tuple(value // _TRIAL_SHRINKS for value in values)
    return [(value, series.size(value, series.nbytes // _TRIAL_SHRINKS)) for value in values]


def told(nbytes: int) -> str:
    """ "64 MiB"."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes} B"
