"""The header of a safetensors image: which tensor lies where."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

EXTRA_PREFIX = "__ckptd_extra__."
_RESERVED = "__ckptd_"


class Entry(NamedTuple):
    """One stored tensor. `begin`, `end`: bytes, counted from whatever `data_offset` counted from.

    offsets: where it lies in the whole tensor of which it is a shard; zeros for a whole one.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    offsets: tuple[int, ...]


class Header:
    """Tensors of one or more images by name; aliases of tied ones lead to the same entry."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.aliases: dict[str, str] = {}
        self.extra: Entry | None = None
        self.metadata: dict[str, str] = {}

    def add(self, text: bytes | str, data_offset: int) -> None:
        """Adds an image whose tensors begin at `data_offset`. ValueError for what is no safetensors header."""
        document = json.loads(text)
        if not isinstance(document, dict):
            raise ValueError("safetensors header: not an object")
        metadata = document.pop("__metadata__", {})
        self.metadata.update(metadata)
        self.aliases.update(json.loads(self.metadata.get("ckptd.aliases", "{}")))
        shards = json.loads(metadata.get("DCP_SHARDING_INFO", "{}"))
        for name, value in document.items():
            entry = _entry(name, value, data_offset, shards.get(name))
            if name.startswith(EXTRA_PREFIX):
                self.extra = entry
            elif not name.startswith(_RESERVED):
                self.entries[name] = entry

    def find(self, name: str) -> Entry | None:
        """Entry of a tensor by its name or another name of it."""
        return self.entries.get(name) or self.entries.get(self.aliases.get(name, ""))


def _entry(name: str, value: Any, data_offset: int, shard: Any) -> Entry:
    try:
        begin, end = value["data_offsets"]
        shape = tuple(int(size) for size in value["shape"])
        offsets = tuple(int(offset) for offset in shard["saved_offsets"]) if shard else (0,) * len(shape)
        entry = Entry(value["dtype"], shape, data_offset + begin, data_offset + end, offsets)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"safetensors header: bad entry of {name!r}") from error
    if not 0 <= begin <= end or any(size < 0 for size in shape):
        raise ValueError(f"safetensors header: bad offsets of {name!r}")
    return entry
