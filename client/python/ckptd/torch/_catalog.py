"""What a checkpoint holds, as DCP sees it: rebuilt from the headers and extra documents of all ranks.

A stored tensor is a chunk of the tensor of its name, at the offsets that DCP_SHARDING_INFO gives; one that several
ranks hold is taken from the first. Nothing that is read is believed: types, bounds and overlaps of what stands there
are judged here, the bytes by their checksums where they are read.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from .. import _errors, dtypes, extra
from ..header import Entry, Header
from ._pieces import BYTES_PREFIX


class Place(NamedTuple):
    """Where an item lies: bytes [begin, end) of the slot of a rank. `dtype`: None for bytes of a pickled value."""

    rank: int
    begin: int
    end: int
    dtype: torch.dtype | None
    shape: tuple[int, ...]


class Catalog:
    """Items of all ranks. `add_rank` for rank 0, 1, …; then `metadata`."""

    def __init__(self, what: str) -> None:
        """what: the checkpoint, for messages."""
        self.places: dict[MetadataIndex, Place] = {}
        self._what = what
        self._wholes: dict[str, TensorStorageMetadata] = {}
        self._bytes: set[str] = set()
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._planner: Any = None

    def add_rank(self, rank: int, headers: list[Header], document: dict[str, Any]) -> None:
        """headers: one an image. document: of the extra tensor, decoded JSON. RestoreError for what makes no sense."""
        try:
            self._add_rank(rank, headers, document)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise self._corrupt(f"rank {rank}: {error}") from error

    def _add_rank(self, rank: int, headers: list[Header], document: dict[str, Any]) -> None:
        mine = document.get("dcp") or {}
        for name, size in mine.get("sizes", {}).items():
            self._sizes.setdefault(name, tuple(map(_natural, size)))
        packed = None
        for header in headers:
            for name, entry in header.entries.items():
                if name.startswith(BYTES_PREFIX):
                    packed = entry
                else:
                    self._add_tensor(rank, name, entry, tuple(map(_natural, entry.offsets)))
        for header in headers:
            for alias, name in header.aliases.items():
                if name in header.entries:
                    self._add_tensor(rank, alias, header.entries[name], header.entries[name].offsets)
        for name, (begin, end) in mine.get("bytes", {}).items():
            self._add_bytes(rank, name, packed, _natural(begin), _natural(end))
        self._add_planner(mine)

    def _add_tensor(self, rank: int, name: str, entry: Entry, offsets: tuple[int, ...]) -> None:
        dtype, shape = dtypes.torch_of(entry.dtype, name), entry.shape
        if len(offsets) != len(shape) or math.prod(shape) * dtype.itemsize != entry.end - entry.begin:
            have = entry.end - entry.begin
            raise ValueError(f"{name}: {entry.dtype} {list(shape)} at {list(offsets)} has {have} bytes")
        index = MetadataIndex(name, offsets)
        if index in self.places:
            return
        whole = self._wholes.get(name)
        if whole is None:
            size = self._sizes.get(name, tuple(map(sum, zip(offsets, shape))))
            whole = self._wholes[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(size), [])
        elif name not in self._sizes and len(whole.size) == len(shape):
            whole.size = torch.Size(max(have, at + size) for have, at, size in zip(whole.size, offsets, shape))
        fits = len(whole.size) == len(shape) and all(a + s <= w for a, s, w in zip(offsets, shape, whole.size))
        if name in self._bytes or whole.properties.dtype != dtype or not fits:
            place = f"{list(offsets)} of {list(whole.size)}"
            raise ValueError(f"{name}: its part is {entry.dtype} {list(shape)} at {place}")
        self.places[index] = Place(rank, entry.begin, entry.end, dtype, shape)
        whole.chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(shape)))

    def _add_bytes(self, rank: int, name: str, packed: Entry | None, begin: int, end: int) -> None:
        if packed is None or not begin <= end <= packed.end - packed.begin or name in self._wholes:
            raise ValueError(f"{name}: bytes {begin} to {end} are not in the image")
        if name not in self._bytes:
            self._bytes.add(name)
            place = Place(rank, packed.begin + begin, packed.begin + end, None, (end - begin,))
            self.places[MetadataIndex(name)] = place

    def _add_planner(self, mine: dict[str, Any]) -> None:
        """As DefaultSavePlanner merges it: the first rank that says something of a name is right."""
        data: Any = extra.decode(mine["planner"]) if "planner" in mine else None
        if "paths" in mine:
            data = {name: tuple(path) for name, path in mine["paths"].items()}
        if self._planner is None or not isinstance(data, dict):
            self._planner = data if self._planner is None else self._planner
        else:
            self._planner = {**data, **self._planner}

    def metadata(self) -> Metadata:
        """For DCP. RestoreError when parts of a tensor are nowhere."""
        for name, whole in self._wholes.items():
            if sum(math.prod(chunk.sizes) for chunk in whole.chunks) < math.prod(whole.size):
                raise self._corrupt(f"{name}: parts of it are missing ({len(whole.chunks)} of {list(whole.size)})")
        items: dict[str, Any] = {**self._wholes, **{name: BytesStorageMetadata() for name in self._bytes}}
        return Metadata(items, planner_data=self._planner, storage_data=self.places)

    def _corrupt(self, sentence: str) -> Exception:
        return _errors.make("CORRUPT", f"{self._what}: {sentence}")


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 48:
        raise ValueError(f"{value!r} is no size")
    return value
