"""A `Table` in the form of libckpt's `ckpt_table`: parallel arrays, texts and shapes one after the other."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import _lib, dtypes
from .device import HOST
from .shards import Shard
from .state import Column, Table


def _texts(values: list[str]) -> tuple[bytes, np.ndarray]:
    encoded = [value.encode("utf-8") for value in values]
    return b"".join(encoded), np.cumsum([len(text) for text in encoded], dtype=np.uint64)


def _shard_arrays(columns: list[Column]) -> dict[str, np.ndarray]:
    """Offsets and shapes of the wholes; nothing, and all NULL, when nothing is sharded."""
    if not any(column.shard for column in columns):
        return {}
    places = [column.shard or Shard((0,) * len(column.shape), column.shape) for column in columns]
    return {
        "shard_offsets": np.array([number for place in places for number in place.offsets], dtype=np.uint64),
        "global_shapes": np.array([number for place in places for number in place.whole], dtype=np.uint64),
    }


def _flags(column: Column, stays: bool) -> int:
    where = _lib.DEVICE if column.device != HOST else _lib.STAYS if stays else 0
    return where | (_lib.EAGER if column.eager else 0)


def table_view(table: Table, extra_bytes: int, stays: bool) -> tuple[_lib.TableView, list[Any]]:
    """The struct, and the arrays it points to: keep them until the call returned. stays: of host memory, until it is
    captured."""
    columns = table.columns
    names, name_ends = _texts([column.name for column in columns])
    aliases, alias_ends = _texts([name for name, _ in table.aliases])
    arrays = {
        "name_ends": name_ends,
        "dtypes": np.array([dtypes.NUMBERS[column.dtype] for column in columns], dtype=np.uint8),
        "dims": np.array([len(column.shape) for column in columns], dtype=np.uint32),
        "shapes": np.array([size for column in columns for size in column.shape], dtype=np.uint64),
        **_shard_arrays(columns),
        "data": table.addresses,
        "flags": np.array([_flags(column, stays) for column in columns], dtype=np.uint8),
        "alias_ends": alias_ends,
        "alias_of": np.array([index for _, index in table.aliases], dtype=np.uint64),
    }
    pointers = {name: array.ctypes.data_as(ctypes.c_void_p) for name, array in arrays.items()}
    view = _lib.TableView(
        count=len(columns),
        names=names,
        aliases=aliases,
        alias_count=len(table.aliases),
        extra_bytes=extra_bytes,
        **pointers,
    )
    return view, [names, aliases, *arrays.values()]
