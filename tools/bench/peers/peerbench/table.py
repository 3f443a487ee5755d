"""The figures of a workload as a markdown table."""

from __future__ import annotations

from typing import Any

from .ways import WAYS

_COLUMNS = (  # heading, figure, what of it
    ("blocked s", "blocked", "median"),
    ("gate s", "gate", "median"),
    ("captured s", "captured", "median"),
    ("/ memcpy", "captured", "of_limit"),
    ("lost s", "lost", "median"),
    ("/ best peer", "lost", "of_best"),
    ("A/A s", "drift", "median"),
    ("in memory s", "in_memory", "median"),
    ("written s", "written", "median"),
    ("durable s", "durable", "median"),
    ("/ disk", "durable", "of_limit"),
    ("/ best async", "durable", "of_best"),
    ("restore s", "restore", "median"),
    ("/ disk", "restore", "of_limit"),
    ("/ best peer", "restore", "of_best"),
)
_DURABLE = 9  # its column


def _number(value: float | None) -> str:
    """Three digits; nothing where there is no figure."""
    if value is None:
        return ""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _row(way: str, result: dict[str, Any]) -> str:
    figures, error = result["figures"], result["error"]
    head = way if WAYS[way].limit or not result["version"] else f"{way} ({result['version']})"
    if not figures:
        return f"| {head} | {_cell(error or 'not run')} |" + " |" * (len(_COLUMNS) - 1)
    cells = [_number(figures.get(figure, {}).get(what)) for _, figure, what in _COLUMNS]
    if not WAYS[way].durable:
        cells[_DURABLE] = "never"
    if result["failures"]:
        head += _cell(f"; {len(result['failures'])} failed: {result['failures'][-1]['error']}")
    return f"| {head} | {' | '.join(cells)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _limits(results: dict[str, Any], tool: str) -> str:
    told = []
    for name, sentence in (("memcpy", "memcpy on one core"), ("write", f"{tool} O_DIRECT write and fsync"),
                           ("read", f"{tool} O_DIRECT read"),
                           ("cached", "write through the page cache and fsync")):  # fmt: skip
        all_values = [value for one in results.values() for value in one["figures"].get(name, {}).get("values", ())]
        if all_values:
            told.append(f"{sentence} {min(all_values):.3f} to {max(all_values):.3f} s")
    return "The same bytes, next to each save: " + "; ".join(told) + "."


def table(found: dict[str, Any], tool: str) -> list[str]:
    """Lines: heading, table, limits. Figures are medians; every ratio to a limit is of the same visit."""
    heads = [heading for heading, _, _ in _COLUMNS]
    gib = found["bytes"] / (1 << 30)
    lines = [f"### {found['name']}: {gib:.3g} GiB, {found['ranks']} rank(s), {found['tensors']} tensors each", ""]
    lines += [f"| way | {' | '.join(heads)} |", "| --- |" + " --- |" * len(heads)]
    lines += [_row(way, result) for way, result in found["ways"].items()]
    return [*lines, "", _limits(found["ways"], tool)]
