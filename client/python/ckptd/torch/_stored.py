"""One rank's slot as it lies on storage: its files back to back, read with their checksums compared.

The manifest (its own checksum first) binds the sidecar by checksum, the sidecar has the checksums of equal chunks of
the slot. A chunk is read into memory of ours, compared, then copied from: what changes on storage meanwhile is seen.
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
from typing import Any

import numpy as np

from .. import _errors, _lib

_MAX_CHUNK = 1 << 30


class Stored:
    """`rank` of the committed step in `folder`. RestoreError, naming the file, for what does not fit together."""

    def __init__(self, folder: pathlib.Path, manifest: dict[str, Any], rank: int) -> None:
        self._folder = folder
        items = [item for item in manifest["files"] if item["rank"] == rank]
        if not items:
            raise self._corrupt("manifest.json", f"no file of rank {rank}")
        self._sidecar = _plain_name(folder, items[0]["sidecar"])
        document = self._checked_sidecar(items[0]["sidecar_crc32c"])
        self._files: list[tuple[str, int, int, int]] = []  # name, where it begins in the slot, bytes, of its header
        begin = 0
        for image, item in zip(document["images"], items):
            name, size, head = _plain_name(folder, item["name"]), int(item["bytes"]), int(image["header_bytes"])
            if image["name"] != name or image["bytes"] != size or not 8 <= head <= size:
                raise self._corrupt(self._sidecar, f"it does not describe {name}")
            self._files.append((name, begin, size, head))
            begin += size
        self._bytes = begin
        self._chunk, self._sums = int(document["chunk_bytes"]), list(document["chunk_crc32c"])
        whole = len(document["images"]) == len(items) and 0 < self._chunk <= _MAX_CHUNK
        if not whole or len(self._sums) != -(-self._bytes // self._chunk):
            raise self._corrupt(self._sidecar, "its checksums do not cover the files")
        self._buffer = np.empty(0, dtype=np.uint8)
        self._at = -1  # chunk in the buffer

    def _checked_sidecar(self, checksum: int) -> dict[str, Any]:
        try:
            text = (self._folder / self._sidecar).read_bytes()
        except OSError as error:
            raise self._corrupt(self._sidecar, str(error)) from error
        if _lib.library().ckpt_crc32c(0, text, len(text)) != checksum:
            raise self._corrupt(self._sidecar, "its checksum is wrong")
        return json.loads(text)

    def headers(self) -> list[tuple[bytes, int]]:
        """(text, offset of the tensors in the slot) of each file."""
        found = []
        for name, begin, _, head in self._files:
            data = np.empty(head, dtype=np.uint8)
            self.read(np.array([[data.ctypes.data, begin, head]], dtype=np.uint64))
            if int.from_bytes(data[:8].tobytes(), "little") != head - 8:
                raise self._corrupt(name, "no safetensors file")
            found.append((data[8:].tobytes(), begin + head))
        return found

    def read(self, boxes: np.ndarray) -> None:
        """Fills memory. boxes: [n, 3] of address, offset in the slot, bytes; rising offsets read each chunk once."""
        for address, offset, size in boxes.tolist():
            if offset + size > self._bytes:
                raise self._corrupt(self._files[-1][0], "shorter than its header says")
            while size:
                at = offset // self._chunk
                self._fetch(at)
                begin = offset - at * self._chunk
                part = min(size, len(self._buffer) - begin)
                ctypes.memmove(address, self._buffer.ctypes.data + begin, part)
                address, offset, size = address + part, offset + part, size - part

    def _fetch(self, at: int) -> None:
        """Chunk `at`, checked, into the buffer."""
        if at == self._at:
            return
        begin, end = at * self._chunk, min((at + 1) * self._chunk, self._bytes)
        self._at = -1
        if len(self._buffer) != end - begin:
            self._buffer = np.empty(end - begin, dtype=np.uint8)
        names = []
        for name, first, size, _ in self._files:
            low, high = max(begin, first), min(end, first + size)
            if low < high:
                names.append(name)
                self._read_file(name, low - first, memoryview(self._buffer)[low - begin : high - begin])
        found = _lib.library().ckpt_crc32c(0, self._buffer.ctypes.data, len(self._buffer))
        if found != self._sums[at]:
            raise self._corrupt(" and ".join(names), f"the checksum of bytes {begin} to {end} of the slot is wrong")
        self._at = at

    def _read_file(self, name: str, offset: int, into: memoryview) -> None:
        try:
            with open(self._folder / name, "rb", buffering=0) as file:
                done = 0
                while done < len(into):
                    got = os.preadv(file.fileno(), [into[done:]], offset + done)
                    if got == 0:
                        raise self._corrupt(name, "shorter than the manifest says")
                    done += got
        except OSError as error:
            raise self._corrupt(name, str(error)) from error

    def _corrupt(self, name: str, sentence: str) -> Exception:
        return _errors.make("CORRUPT", f"{self._folder / name}: {sentence}")


def _plain_name(folder: pathlib.Path, name: str) -> str:
    if "/" in name or name in ("", ".", ".."):
        raise _errors.make("CORRUPT", f"{folder}/manifest.json: {name!r} is no file name")
    return name
