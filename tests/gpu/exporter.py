"""A child that stands for a trainer: it allocates, exports, frees, breaks its context, or just dies."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import content
from child import Port
from driver import CudaError, Driver, Gpu, address_of, pinned
from memory import KINDS, Memory, attributes

# Writes to address 0: an illegal address, after which the context answers nothing else. For any GPU since 2018.
_FAULT = b""".version 7.0
.target sm_75
.address_size 64
.visible .entry fault()
{
  .reg .b32 %value;
  .reg .b64 %nowhere;
  mov.b32 %value, 1;
  mov.b64 %nowhere, 0;
  st.global.b32 [%nowhere], %value;
  ret;
}
"""


class Exporter:
    """What the messages ask. `size`: bytes of the allocation; `checked`: of its beginning that hold the pattern."""

    def __init__(self) -> None:
        self._gpu: Gpu
        self._memory: Memory
        self._size = self._checked = 0

    def start(self) -> dict[str, Any]:
        began = time.monotonic()
        self._gpu = Gpu(Driver())
        return {"seconds": time.monotonic() - began}

    def allocate(self, kind: str, size: int, checked: int, seed: int) -> dict[str, Any]:
        self._size, self._checked, self._kind = size, checked, kind
        self._memory = KINDS[kind][0](self._gpu, size)
        return {"crc": self._fill(seed), "attributes": attributes(self._gpu, self._memory.address)}

    def _fill(self, seed: int) -> int:
        with pinned(self._gpu.cuda, self._checked) as host:
            crc = content.fill(host, self._checked, seed)
            self._gpu.copy_in(self._memory.address, address_of(host), self._checked)
            self._gpu.synchronize()
        return crc

    def export(self) -> dict[str, Any]:
        exported, fd = self._memory.export()
        return {"exported": exported, "fds": [] if fd is None else [fd]}

    def push(self) -> dict[str, Any]:
        """The copy that the trainer's own process makes."""
        with pinned(self._gpu.cuda, self._checked) as host:
            return content.copy_out(self._gpu, host, address_of(host), self._memory.address, self._checked)

    def free_and_reuse(self, seed: int) -> None:
        """Frees while others have it mapped, then puts other bytes where it may have been."""
        self._memory.free()
        self._memory = KINDS[self._kind][0](self._gpu, self._size)
        self._fill(seed)

    def fault(self) -> dict[str, Any]:
        """Runs a kernel that breaks the context: the error that it meets, and that of the next call."""
        cuda = self._gpu.cuda
        module = cuda.ask("cuModuleLoadData", ctypes.c_void_p, _FAULT)
        kernel = cuda.ask("cuModuleGetFunction", ctypes.c_void_p, module, b"fault")
        cuda.call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, self._gpu.stream, None, None)
        return {"kernel": self._error_of_synchronize(), "next_call": self._error_of_synchronize()}

    def _error_of_synchronize(self) -> str:
        try:
            self._gpu.synchronize()
        except CudaError as error:
            return error.name
        return "none"


if __name__ == "__main__":
    exporter = Exporter()
    Port().serve({name: getattr(exporter, name)
                  for name in ("start", "allocate", "export", "push", "free_and_reuse", "fault")})  # fmt: skip
