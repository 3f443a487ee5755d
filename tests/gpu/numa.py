"""On which memory node pages lie, and where new ones of this process shall."""

from __future__ import annotations

import ctypes
import os
import pathlib
import platform
import re

_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}  # set_mempolicy, get_mempolicy
_NODE_OF_ADDRESS = 1 | 2  # MPOL_F_NODE | MPOL_F_ADDR
_DEFAULT, _PREFERRED = 0, 1
_libc = ctypes.CDLL(None, use_errno=True)


def node_of(address: int) -> int | None:
    """None where the kernel does not say: it does not of memory that a driver maps."""
    node = ctypes.c_int(-1)
    call = _CALLS.get(platform.machine(), (0, 0))[1]
    if not call or _libc.syscall(call, ctypes.byref(node), None, 0, ctypes.c_void_p(address), _NODE_OF_ADDRESS):
        return None
    return node.value


def prefer(node: int | None) -> bool:
    """New pages of this thread come from `node`, None: from where it runs. Whether the kernel agreed."""
    call = _CALLS.get(platform.machine(), (0, 0))[0]
    mask = ctypes.c_ulong(1 << (node or 0))
    mode, nodes, bits = (_DEFAULT, None, 0) if node is None else (_PREFERRED, ctypes.byref(mask), 64)
    return bool(call) and _libc.syscall(call, mode, nodes, bits) == 0


def pages_under(folder: pathlib.Path) -> dict[int, int]:
    """Pages by node of the files below `folder` that this process maps; empty where the kernel does not say."""
    found: dict[int, int] = {}
    try:
        lines = pathlib.Path("/proc/self/numa_maps").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        if f"file={os.fspath(folder)}/" in line:
            for node, pages in re.findall(r" N(\d+)=(\d+)", line):
                found[int(node)] = found.get(int(node), 0) + int(pages)
    return found
