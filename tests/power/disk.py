"""A disk with a volatile write cache, for a guest: what was not flushed when the power fails may be lost.

QEMU that is killed loses nothing that the guest wrote, flushed or not: the host has it. This disk does what real ones
do. A write lies in the cache until the guest flushes; a write with FUA is on the medium when it is answered. cut() is
the power failure: of the pieces (4 KiB, aligned) in the cache a random subset, in the order they were written, reaches
the medium, the rest is gone.

The medium is a file. The guest's side is NBD, which QEMU speaks: the fixed newstyle handshake, one export, simple
replies; numbers are big-endian.

  handshake   "NBDMAGIC" "IHAVEOPT" flags:2 ->   <- flags:4
  option      <- "IHAVEOPT" option:4 length:4 data;  -> 0x3e889045565a9 option:4 reply:4 length:4 data
  request     <- 0x25609513 flags:2 type:2 cookie:8 offset:8 length:4 [data]
  reply       -> 0x67446698 error:4 cookie:8 [data]
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
from typing import Callable

PIECE = 4096

_MAGIC, _OPTION, _OPTION_REPLY = b"NBDMAGIC", b"IHAVEOPT", 0x3E889045565A9
_FIXED_NO_ZEROES = 3
_EXPORT_NAME, _ABORT, _INFO, _GO = 1, 2, 6, 7
_ACK, _INFO_REPLY, _UNSUPPORTED = 1, 3, 0x80000001
_HAS_FLAGS_FLUSH_FUA = 1 | 4 | 8
_READ, _WRITE, _DISCONNECT, _FLUSH = 0, 1, 2, 3
_FUA = 1
_EINVAL = 22


class Cache:
    """The medium and what lies before it. Calls come from one thread at a time."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR)
        self.size = os.fstat(self._file).st_size
        self._pieces: list[tuple[int, bytes, bool]] = []  # offset, data, whether it is on the medium for certain
        self._newest: dict[int, bytearray] = {}  # by the number of the piece: what a read finds

    def close(self) -> None:
        os.close(self._file)

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(os.pread(self._file, length, offset))
        for at, start, stop in _split(offset, length):
            newest = self._newest.get(at // PIECE)
            if newest is not None:
                data[start:stop] = newest[at % PIECE : at % PIECE + stop - start]
        return bytes(data)

    def write(self, offset: int, data: bytes, forced: bool) -> None:
        for at, start, stop in _split(offset, len(data)):
            number = at // PIECE
            if number not in self._newest:
                self._newest[number] = bytearray(os.pread(self._file, PIECE, number * PIECE))
            self._newest[number][at % PIECE : at % PIECE + stop - start] = data[start:stop]
            self._pieces.append((at, data[start:stop], forced))

    def flush(self) -> None:
        self._keep(self._pieces)

    def cut(self, chance: random.Random) -> tuple[int, int]:
        """(pieces that were in the cache, those that are lost)."""
        kept_of_all = chance.choice([0.0, 1.0, chance.random()])
        kept = [piece for piece in self._pieces if piece[2] or chance.random() < kept_of_all]
        counts = len(self._pieces), len(self._pieces) - len(kept)
        self._keep(kept)
        return counts

    def _keep(self, pieces: list[tuple[int, bytes, bool]]) -> None:
        for at, data, _ in pieces:
            os.pwrite(self._file, data, at)
        self._pieces = []
        self._newest = {}


def _split(offset: int, length: int) -> list[tuple[int, int, int]]:
    """[offset, offset + length) cut at the borders of pieces: (offset, first and last index into the data)."""
    out, at = [], offset
    while at < offset + length:
        stop = min(offset + length, (at // PIECE + 1) * PIECE)
        out.append((at, at - offset, stop - offset))
        at = stop
    return out


class Gone(Exception):
    """The guest closed the connection."""


class Disk:
    """Serves one guest after the other on the socket `address`. `kind`: volatile; plain, where the power failure loses
    nothing that was written; lying, a volatile one that does not obey flushes."""

    def __init__(self, path: str, address: str, kind: str) -> None:
        self._cache = Cache(path)
        self._kind = kind
        self._mutex = threading.Lock()  # of all below, and of the cache
        self._powered = True
        self._until: int | None = None  # writes and flushes until the power fails by itself
        self._tell: Callable[[], None] = lambda: None
        self.asked = 0  # writes and flushes of this life
        self._listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address)
        self._listener.bind(address)
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._serve, name="disk")
        self._thread.start()

    def arm(self, requests: int, tell: Callable[[], None]) -> None:
        """The power fails when the guest has asked for so many writes and flushes; the last one is not obeyed."""
        with self._mutex:
            self._until, self._tell = requests, tell

    @property
    def powered(self) -> bool:
        with self._mutex:
            return self._powered

    def power_off(self) -> None:
        """From now on nothing that the guest asks for happens."""
        with self._mutex:
            self._powered = False

    def cut(self, chance: random.Random) -> tuple[int, int]:
        """What the power failure leaves, and the power is back. After power_off() and the end of the guest."""
        with self._mutex:
            self._powered, self._until, self.asked = True, None, 0
            if self._kind == "plain":
                self._cache.flush()
                return 0, 0
            return self._cache.cut(chance)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._cache.close()

    def _serve(self) -> None:
        while True:
            try:
                guest, _ = self._listener.accept()
            except OSError:  # closed
                return
            with guest:
                try:
                    if self._negotiate(guest):
                        while self._answer(guest):
                            pass
                except (Gone, ConnectionError):
                    pass

    def _negotiate(self, guest: socket.socket) -> bool:
        guest.sendall(struct.pack(">8s8sH", _MAGIC, _OPTION, _FIXED_NO_ZEROES))
        _receive(guest, 4)
        about = struct.pack(">QH", self._cache.size, _HAS_FLAGS_FLUSH_FUA)
        while True:
            _, option, length = struct.unpack(">8sII", _receive(guest, 16))
            _receive(guest, length)
            if option == _EXPORT_NAME:
                guest.sendall(about)
                return True
            if option in (_INFO, _GO):
                _reply(guest, option, _INFO_REPLY, struct.pack(">H", 0) + about)
            _reply(guest, option, _ACK if option in (_INFO, _GO, _ABORT) else _UNSUPPORTED, b"")
            if option in (_GO, _ABORT):
                return option == _GO

    def _answer(self, guest: socket.socket) -> bool:
        _, flags, kind, cookie, offset, length = struct.unpack(">IHHQQI", _receive(guest, 28))
        data = _receive(guest, length) if kind == _WRITE else b""
        if kind == _DISCONNECT:
            return False
        with self._mutex:
            self._count(kind)
            if not self._powered:  # no answer: an error would be a fault of another kind
                return True
            error, out = self._obey(kind, flags, offset, length, data)
        guest.sendall(struct.pack(">IIQ", 0x67446698, error, cookie) + out)
        return True

    def _count(self, kind: int) -> None:
        if kind not in (_WRITE, _FLUSH) or not self._powered:
            return
        self.asked += 1
        if self.asked == self._until:
            self._powered = False
            self._tell()

    def _obey(self, kind: int, flags: int, offset: int, length: int, data: bytes) -> tuple[int, bytes]:
        if kind == _READ:
            return 0, self._cache.read(offset, length)
        if kind == _WRITE:
            self._cache.write(offset, data, flags & _FUA != 0 and self._kind != "lying")
        elif kind == _FLUSH:
            if self._kind != "lying":
                self._cache.flush()
        else:
            return _EINVAL, b""
        return 0, b""


def _receive(guest: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = guest.recv(length - len(data))
        if not more:
            raise Gone
        data += more
    return bytes(data)


def _reply(guest: socket.socket, option: int, reply: int, data: bytes) -> None:
    guest.sendall(struct.pack(">QIII", _OPTION_REPLY, option, reply, len(data)) + data)
