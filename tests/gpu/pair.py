"""An exporter and an importer of one allocation."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

from child import Child, Who, close_all
from results import Part, Wrong

_seeds = itertools.count(1)


class Pair(contextlib.ExitStack):
    """Two children; `open` makes the importer hold the exporter's memory. What Child.ask raises."""

    def __init__(self, part: Part, exporter: Who | None = None, importer: Who | None = None) -> None:
        super().__init__()
        self.exporter = self.enter_context(Child("exporter.py", part.left, part.log, exporter))
        self.importer = self.enter_context(Child("importer.py", part.left, part.log, importer))
        self.crc = 0

    def open(self, values: dict[str, Any], kind: str, size: int, checked: int) -> None:
        """Allocates, exports, imports; adds to `values` what the driver says of the memory on both sides."""
        self.importer.post("start")
        values["exporter_start_seconds"] = self.exporter.ask("start")["seconds"]
        values["importer_start_seconds"] = self.importer.answer()[0]["seconds"]
        made = self.exporter.ask("allocate", kind=kind, size=size, checked=checked, seed=next(_seeds))
        self.crc = made["crc"]
        values["exporter_attributes"] = made["attributes"]
        values["step"] = "export"
        reply, fds = self.exporter.ask_with_fds("export")
        try:
            values["step"] = "import"
            opened = self.importer.ask("open", tuple(fds), kind=kind, size=size, checked=checked,
                                       exported=reply["exported"])  # fmt: skip
        finally:
            close_all(fds)
        values["importer_attributes"] = opened["attributes"]
        if opened["access"]:
            values["access"] = opened["access"]
        values["step"] = "copy"

    def compare(self, values: dict[str, Any], copied: dict[str, Any]) -> None:
        """Wrong: a copy that was told to have succeeded holds other bytes."""
        values["equal"] = copied["crc"] == self.crc
        if not values["equal"]:
            raise Wrong("a copy that reports success holds other bytes")
