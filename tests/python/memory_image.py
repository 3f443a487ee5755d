"""An image in memory instead of an agent: what a table would be stored as, and a restore out of it."""

import ctypes
import json

import numpy as np
from ckptd import extra, rng
from ckptd.header import Header
from ckptd.restore import Restorer
from ckptd.state import State, extra_text


class Image:
    """The state as it is at construction."""

    def __init__(self, state, lazy="auto", generators=False):
        self.table = State(state, lazy).survey()
        plain = self.table.refresh()
        rng_text = extra.dumps(rng.capture()) if generators else "null"
        document = extra_text(plain, rng_text).encode("ascii")
        self.data, entries = b"", {}
        for column, address in zip(self.table.columns, self.table.addresses):
            count = int(np.prod(column.shape, dtype=np.int64)) * _itemsize(column.dtype)
            entries[column.name] = self._append(
                column.dtype, column.shape, ctypes.string_at(int(address), count) if count else b""
            )
        entries["__ckptd_extra__.rank-00000"] = self._append("U8", [len(document)], document)
        aliases = {name: self.table.columns[index].name for name, index in self.table.aliases}
        places = {column.name: {"saved_offsets": column.shard.offsets} for column in self.table.columns if column.shard}
        sharding = {"DCP_SHARDING_INFO": json.dumps(places)} if places else {}
        entries["__metadata__"] = {"format": "pt", "ckptd.aliases": json.dumps(aliases), **sharding}
        self.header = json.dumps(entries)

    def _append(self, dtype, shape, data):
        begin = len(self.data)
        self.data += data
        return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, len(self.data)]}

    def names(self):
        return {column.name for column in self.table.columns}

    def column(self, name):
        return next(column for column in self.table.columns if column.name == name)

    def restore(self, state, strict=True, generators=False):
        restorer = _FromMemory(self, State(state), generators, strict)
        status, failure = restorer._try_load(_View())
        if failure is not None:
            raise failure
        assert status == 0
        return restorer._notes


class _View:
    snapshot_attempt, snapshot_step = 1, 5


class _FromMemory(Restorer):
    def __init__(self, image, state, generators, strict):
        self._image, self._state, self._generators, self._strict, self._notes = image, state, generators, strict, []

    def _header(self, view):
        header = Header()
        header.add(self._image.header, 0)
        return header

    def _fetch(self, boxes):
        for address, offset, size, _ in boxes.tolist():
            ctypes.memmove(address, self._image.data[offset : offset + size], size)


def _itemsize(dtype):
    return {"BOOL": 1, "C64": 8, "BF16": 2}.get(dtype) or int(dtype.split("_")[0].lstrip("FIUC")) // 8
