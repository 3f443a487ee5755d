"""What the machine can do, taken next to each save: memcpy on one core, the disk's sequential write and read, and a
write through the page cache."""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import pathlib
import shutil
import subprocess
import time

_BLOCK = 8 << 20
_ALIGNED = 4096  # as O_DIRECT wants it
_COPIED_AT_ONCE = 256 << 20  # many times the caches; more bytes are copied in turns
_FIO_SECONDS = 300.0


class Memcpy:
    """Two buffers of memory that is there already."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._part = min(nbytes, _COPIED_AT_ONCE)
        self._buffers = [mmap.mmap(-1, self._part) for _ in range(2)]
        self._addresses = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in self._buffers]
        for address in self._addresses:
            ctypes.memset(address, 1, self._part)

    def seconds(self) -> float:
        """To copy the bytes once, on one core."""
        source, target = self._addresses
        left, began = self._nbytes, time.perf_counter()
        while left > 0:
            ctypes.memmove(target, source, min(left, self._part))
            left -= self._part
        return time.perf_counter() - began


class Disk:
    """Sequential O_DIRECT write of a fresh file with fsync, and O_DIRECT read of it; both of `nbytes`, in `folder`.

    tool: "fio" or "own"; "auto": fio where it is installed and works. `tool` tells which one it is.
    """

    def __init__(self, folder: pathlib.Path, nbytes: int, tool: str = "auto") -> None:
        self._path, self._nbytes = folder / "limit", nbytes
        self._block = min(_BLOCK, -(-nbytes // _ALIGNED) * _ALIGNED)
        self._blocks = -(-nbytes // self._block)
        self.tool = self._found() if tool == "auto" else tool

    def seconds(self) -> dict[str, float]:
        """Of whole blocks, less what the last one is too long. cached: a plain write with fsync. The files are gone
        afterwards."""
        part = self._nbytes / (self._blocks * self._block)
        try:
            cached = self._write(0)
            self._path.unlink()
            if self.tool == "fio":
                found = {"write": self._fio("write", "--end_fsync=1"), "read": self._fio("read")}
            else:
                found = {"write": self._write(os.O_DIRECT), "read": self._read()}
            return {name: part * seconds for name, seconds in {**found, "cached": cached}.items()}
        finally:
            self._path.unlink(missing_ok=True)

    def _found(self) -> str:
        """A container may have fio and no io_uring."""
        if shutil.which("fio") is None:
            return "own"
        try:
            self._fio("write")
        except subprocess.CalledProcessError:
            return "own"
        finally:
            self._path.unlink(missing_ok=True)
        return "fio"

    def _fio(self, kind: str, *more: str) -> float:
        """fio counts its fsync, and not its own start."""
        size = self._blocks * self._block
        command = ["fio", "--name=limit", f"--filename={self._path}", f"--rw={kind}", f"--size={size}",
                   f"--bs={self._block}", "--ioengine=io_uring", "--iodepth=4", "--direct=1",
                   "--output-format=json", *more]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FIO_SECONDS, check=True)
        found = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][kind]
        if found["io_bytes"] != size:
            raise RuntimeError(f"fio: {found['io_bytes']} of {size} bytes: {done.stderr.strip()}")
        return max(found["runtime"], 1) / 1e3

    def _write(self, flag: int) -> float:
        block = mmap.mmap(-1, self._block)
        block.write(os.urandom(self._block))
        began = time.perf_counter()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flag, 0o600)
        try:
            for _ in range(self._blocks):
                os.write(descriptor, block)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return time.perf_counter() - began

    def _read(self) -> float:
        block = mmap.mmap(-1, self._block)
        began = time.perf_counter()
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECT)
        try:
            for _ in range(self._blocks):
                os.readv(descriptor, [block])
        finally:
            os.close(descriptor)
        return time.perf_counter() - began


def drop_caches(folder: pathlib.Path, system: bool) -> str:
    """So that what was saved in `folder` comes from the disk: "dropped" (all of the system's, as root), or "advised"
    (these files alone)."""
    os.sync()
    if system:
        with contextlib.suppress(PermissionError):
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
            return "dropped"
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
    return "advised"
