"""The verdicts as a table in client/python/README.md, between two markers."""

from __future__ import annotations

from collections.abc import Iterable

from .rows import Row

BEGIN = "<!-- written by tests/python/matrix: CKPTD_UPDATE=1 pytest tests/python/matrix -k readme -->"
END = "<!-- end of the table -->"


def markdown(rows: Iterable[Row]) -> str:
    """One line a row; each has a test of its own that proves its verdict."""
    lines = ["| | loop | verdict |", "| --- | --- | --- |"]
    lines += [f"| {row.group} | {row.name} | {_verdict(row)} |" for row in rows]
    return "\n".join(lines)


def _verdict(row: Row) -> str:
    verdict = f"refused: {row.refused}" if row.refused else "bit-exact"
    return f"{verdict} ({row.note})" if row.note else verdict


def inserted(text: str, block: str) -> str:
    """`text` with `block` between the markers. ValueError when it has none."""
    head, found, rest = text.partition(BEGIN)
    _, also_found, tail = rest.partition(END)
    if not found or not also_found:
        raise ValueError("client/python/README.md has lost the markers of the table")
    return f"{head}{BEGIN}\n{block}\n{END}{tail}"
