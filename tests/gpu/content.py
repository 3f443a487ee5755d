"""What device memory holds in these tests, so that a copy can be judged: bytes of a seed, numbered by the MiB."""

from __future__ import annotations

import mmap
import random
import struct
import time
import zlib
from typing import Any

from driver import Gpu

MIB = 1 << 20


def checksum(memory: mmap.mmap, size: int) -> int:
    """CRC-32 of the first `size` bytes."""
    with memoryview(memory) as view:
        return zlib.crc32(view[:size])


def fill(memory: mmap.mmap, size: int, seed: int) -> int:
    """Writes the pattern of `seed` over `size` bytes, a multiple of MIB; its checksum."""
    block = random.Random(seed).randbytes(MIB)
    for at in range(0, size, MIB):
        memory[at : at + MIB] = block
        struct.pack_into("<QQ", memory, at, seed, at)
    return checksum(memory, size)


def copy_out(gpu: Gpu, to: mmap.mmap, to_address: int, source: int, size: int, times: int = 3) -> dict[str, Any]:
    """Copies device memory to the host, over bytes that are something else: {crc, bytes_per_second of the best}."""
    to[:size] = bytes(size)
    best = 0.0
    for _ in range(times):
        began = time.monotonic()
        gpu.copy_out(to_address, source, size)
        gpu.synchronize()
        best = max(best, size / (time.monotonic() - began))
    return {"crc": checksum(to, size), "bytes_per_second": best}
