"""From visits to the figures of a way, and the ratios to the machine's limits and to the best peer."""

from __future__ import annotations

import statistics
from typing import Any

from .ways import PLAIN_COPY, WAYS

NAMES = (
    "blocked", "gate", "captured", "lost", "written", "durable", "in_memory", "restore", "drift", "step",
    "memcpy", "write", "read", "cached",
)  # fmt: skip
_LIMITS = {  # of each figure, in the same visit
    "blocked": "memcpy",
    "captured": "memcpy",
    "lost": "memcpy",
    "durable": "write",
    "restore": "read",
}
_AGAINST = {"lost": "best peer", "durable": "best asynchronous peer", "restore": "best peer"}

Figures = dict[str, Any]


def spread(values: list[float]) -> Figures:
    """Median, lowest, highest and the values themselves, in the order in which they were taken."""
    rounded = [float(f"{value:.4g}") for value in values]
    return {"median": float(f"{statistics.median(values):.4g}"), "low": min(rounded), "high": max(rounded),
            "values": rounded}  # fmt: skip


def of_visits(visits: list[Figures]) -> Figures:
    """Of one way: each figure that it has, and `of_limit`: the median of its ratios to the limit of the same visit."""
    found: Figures = {}
    for name in NAMES:
        values = [visit[name] for visit in visits if visit.get(name) is not None]
        if values:
            found[name] = spread(values)
            limit = _LIMITS.get(name)
            if limit:
                ratios = [visit[name] / visit[limit] for visit in visits if visit.get(name) is not None]
                found[name]["of_limit"] = float(f"{statistics.median(ratios):.4g}")
    return found


def is_peer(way: str, figure: str) -> bool:
    """Whether others are compared with it: not ours, no limit, and for `durable` an asynchronous one."""
    known = WAYS[way]
    return not known.ours and not known.limit and (known.asynchronous or figure != "durable")


def add_best(found: dict[str, Figures]) -> dict[str, Figures]:
    """Adds to each way's figures `of_best`: the ratio to the least median of a peer; tells which peers they are.

    `lost` gets `of_plain_copy` too."""
    best: dict[str, Figures] = {}
    for figure, who in _AGAINST.items():
        peers = {way: one[figure]["median"] for way, one in found.items() if figure in one and is_peer(way, figure)}
        if not peers:
            continue
        way = min(peers, key=lambda each: peers[each])
        best[figure] = {"way": way, "is": who, "median": peers[way]}
        for one in found.values():
            _ratio(one, figure, "of_best", peers[way])
    copy = found.get(PLAIN_COPY, {}).get("lost")
    for one in found.values() if copy else ():
        _ratio(one, "lost", "of_plain_copy", copy["median"])
    return best


def _ratio(one: Figures, figure: str, name: str, base: float) -> None:
    """None where the base lost nothing that can be told from noise."""
    if figure in one:
        one[figure][name] = float(f"{one[figure]['median'] / base:.4g}") if base > 0 else None
