"""From a document to its charts: one for each case of a series."""

from __future__ import annotations

import pathlib
from typing import Any

from .series import GIB, SERIES, told
from .svg import Chart, Curve, Mark, svg

_OURS, _LIMIT = "#1f5fa8", "#8a8a8a"
_NOTE = 110  # characters
_SAYS = {  # of the line of a case
    "save.blocked": "what ckpt_save takes of the training thread",
    "save.captured": "from ckpt_save to the open gate, the flush behind it",
    "flush.durable": "from ckpt_save to durable",
    "commit": "from ckpt_save of a tiny state to durable",
    "register": "inside ckpt_register",
    "register.ready": "from ckpt_register until saves work",
    "restore.region": "a restore out of memory",
    "restore.storage": "a restore from disk, the region lost",
}

Found = dict[str, Any]


def draw(document: Found, folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes SERIES-CASE.svg for all that was measured."""
    written = []
    for name, chart in charts(document).items():
        path = folder / f"{name}.svg"
        path.write_text(svg(chart))
        written.append(path)
    return written


def charts(document: Found) -> dict[str, Chart]:
    """By name. A case of which nothing was measured has none."""
    groups: dict[tuple[str, str], list[Found]] = {}
    for point in document["points"]:
        if "line" in point:
            groups.setdefault((point["series"], point["line"]["case"]), []).append(point)
    return {f"{series}-{case}": _chart(document, series, case, points) for (series, case), points in groups.items()}


def _chart(document: Found, series: str, case: str, points: list[Found]) -> Chart:
    points = sorted(points, key=lambda point: point["value"])
    lines = [point["line"] for point in points]
    where = [point["value"] for point in points]
    ours = [Mark(x, line["value"], *line["spread"]) for x, line in zip(where, lines, strict=True)]
    limit = [Mark(x, line["limit"], *line.get("limit_spread", (line["limit"],) * 2))
             for x, line in zip(where, lines, strict=True)]  # fmt: skip
    rounds = lines[0]["n"]
    return Chart(
        title=f"{case}: {_SAYS[case]}" if case in _SAYS else case,
        x_label=f"{SERIES[series].what}, {_constant(series, points)}",
        y_label=lines[0]["unit"],
        ticks=[(x, told(x) if SERIES[series].in_bytes else f"{x:,}") for x in where],
        curves=[Curve(f"limit: {_limit([line['what'] for line in lines])}", _LIMIT, limit, "6 4"),
                Curve(f"ckptd; median of {rounds}, least and greatest", _OURS, ours)],
        notes=[*_missing(document, series, points[0]["case"]), _machine(document)],
    )  # fmt: skip


def _constant(series: str, points: list[Found]) -> str:
    """What is the same at every point."""
    first = points[0]
    if series == "bytes":
        return f"{first['tensors']:,} tensors"
    if len(points) > 1 and first["ranks"] != points[1]["ranks"] and first["bytes_each"] == points[1]["bytes_each"]:
        return f"{told(first['bytes_each'])} each"
    return f"{told(first['bytes_each'] * first['ranks'])} {'of state' if series == 'chunk' else 'together'}"


def _limit(said: list[str]) -> str:
    """What the lines say of it, without what they say of ours; N: a word that is another one at other points."""
    words = [each.partition("; ")[0].split() for each in said]
    if len({len(each) for each in words}) > 1:
        return "of the same run"
    return " ".join(each[0] if len(set(each)) == 1 else "N" for each in zip(*words, strict=True))


def _missing(document: Found, series: str, case: str) -> list[str]:
    """What was not measured, and why."""
    found = []
    for point in document["points"]:
        why = f"skipped: {point['skipped']}" if "skipped" in point else f"failed: {point.get('error')}"
        if (point["series"], point["case"]) == (series, case) and "line" not in point:
            value = told(point["value"]) if SERIES[series].in_bytes else f"{point['value']:,}"
            found.append(f"{value} {why}"[:_NOTE])
    return found


def _machine(document: Found) -> str:
    machine = document["machine"]
    trial = "a trial, no figure; " if document["trial"] else ""
    return (f"{trial}{machine['cpu']}, {machine['cores']} cores, {machine['memory'] / GIB:.0f} GiB, Linux "
            f"{machine['kernel'].split('-')[0]}; {document['began'][:10]}; commit {document['commit']}")  # fmt: skip
