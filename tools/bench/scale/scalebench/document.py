"""The document of a run: what it was run on, and every point with all that ckptd-bench said of it."""

from __future__ import annotations

import json
import pathlib
import subprocess
from typing import Any

from .series import Point

Found = dict[str, Any]


class Document:
    """path: where it is written after every point."""

    def __init__(self, path: pathlib.Path, facts: Found) -> None:
        self._path = path
        self.found: Found = {"format": 1, "complete": False, **facts, "points": []}

    def add(self, point: Point, **what: Any) -> Found:
        """what: `line`, `skipped` or `error`, and `took`."""
        size = point.size
        entry = {"series": point.series, "case": point.case, "value": point.value, "bytes_each": size.bytes_each,
                 "tensors": size.tensors, "ranks": size.ranks, "chunk": size.chunk or None, **what}  # fmt: skip
        self.found["points"].append(entry)
        self.write()
        return entry

    def write(self, complete: bool = False) -> None:
        """As it is now, whole or not at all; one line a point."""
        self.found["complete"] = complete
        head = {key: value for key, value in self.found.items() if key != "points"}
        points = ",\n".join(f"  {json.dumps(point)}" for point in self.found["points"])
        new = self._path.with_name(self._path.name + ".new")
        new.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "points": [\n{points}\n ]\n}}\n')
        new.rename(self._path)


def commit(root: pathlib.Path) -> str:
    """Of the working tree, "and changes" where it has others; "unknown" without git. The build may be older."""
    git = ["git", "-C", str(root), "-c", "safe.directory=*"]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip() + (" and changes" if changed.stdout.strip() else "")
