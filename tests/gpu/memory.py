"""Device memory of each kind that another process may import: how it is made, exported, imported and given back."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_size_t, c_ubyte, c_uint64, c_ulonglong, c_ushort, c_void_p
from typing import Any, Protocol

from driver import POSIX_FD, CudaError, Gpu, IpcHandle

GRANULARITY = 2 << 20  # of cuMemCreate on every GPU so far
_LAZY_PEER_ACCESS = 1
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_READ, _READ_WRITE = 1, 3  # CU_MEM_ACCESS_FLAGS_PROT_…
_POINTER_ATTRIBUTES = {  # CU_POINTER_ATTRIBUTE_…: its number and type
    "memory_type": (2, ctypes.c_uint),
    "buffer_id": (7, c_ulonglong),
    "is_managed": (8, c_int),
    "device_ordinal": (9, c_int),
    "is_legacy_ipc_capable": (10, c_int),
    "range_size": (12, c_size_t),
    "allowed_handle_types": (14, c_uint64),
    "access_flags": (16, c_ulonglong),
}


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _AllocationProp(ctypes.Structure):
    _fields_ = [("type", c_int), ("handle_types", c_int), ("location", _Location), ("win32", c_void_p),
                ("flags", c_ubyte * 8)]  # fmt: skip


class _AccessDesc(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", c_int)]


class _PoolProps(ctypes.Structure):
    _fields_ = [("type", c_int), ("handle_types", c_int), ("location", _Location), ("win32", c_void_p),
                ("max_size", c_size_t), ("usage", c_ushort), ("reserved", c_ubyte * 54)]  # fmt: skip


class _PoolPointer(ctypes.Structure):
    _fields_ = [("bytes", c_ubyte * 64)]


class Memory(Protocol):
    """An allocation of this process, or one that it imported."""

    address: int

    def export(self) -> tuple[dict[str, Any], int | None]:
        """What travels as text, and a descriptor to send along."""

    def free(self) -> None:
        """Gives it back; of imported memory: closes it."""


def attributes(gpu: Gpu, address: int) -> dict[str, Any]:
    """What the driver says of an address: a number, or the error's name."""
    found: dict[str, Any] = {}
    for name, (number, kind) in _POINTER_ATTRIBUTES.items():
        try:
            found[name] = gpu.cuda.ask("cuPointerGetAttribute", kind, number, address)
        except CudaError as error:
            found[name] = error.name
    return found


class Legacy:
    """cuMemAlloc and the 64 bytes of cuIpcGetMemHandle."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self._cuda = gpu.cuda
        self.address = gpu.cuda.ask("cuMemAlloc", c_uint64, size)

    def export(self) -> tuple[dict[str, Any], int | None]:
        handle = IpcHandle()
        self._cuda.call("cuIpcGetMemHandle", byref(handle), self.address)
        return {"handle": bytes(handle).hex()}, None

    def free(self) -> None:
        self._cuda.call("cuMemFree", self.address)


class ImportedLegacy:
    def __init__(self, gpu: Gpu, size: int, exported: dict[str, Any], fd: int | None) -> None:
        self._cuda = gpu.cuda
        handle = IpcHandle.from_buffer_copy(bytes.fromhex(exported["handle"]))
        self.address = gpu.cuda.ask("cuIpcOpenMemHandle", c_uint64, handle, _LAZY_PEER_ACCESS)

    def free(self) -> None:
        self._cuda.call("cuIpcCloseMemHandle", self.address)


class _Mapped:
    """Physical memory at an address of its own."""

    def __init__(self, gpu: Gpu, size: int, handle: int, flags: int) -> None:
        self._gpu, self._cuda, self._size, self._handle = gpu, gpu.cuda, size, handle
        self.address = self._cuda.ask("cuMemAddressReserve", c_uint64, size, 0, 0, 0)
        self._cuda.call("cuMemMap", self.address, size, 0, handle, 0)
        try:
            self._access(flags)
            self.access = "read-write" if flags == _READ_WRITE else "read-only"
        except CudaError as error:
            self._access(_READ_WRITE)  # drivers may refuse a mapping that is read-only
            self.access = f"read-write; read-only: {error.name}"

    def _access(self, flags: int) -> None:
        wanted = _AccessDesc(_Location(_ON_DEVICE, self._gpu.device), flags)
        self._cuda.call("cuMemSetAccess", self.address, self._size, byref(wanted), 1)

    def free(self) -> None:
        self._cuda.call("cuMemUnmap", self.address, self._size)
        self._cuda.call("cuMemAddressFree", self.address, self._size)
        self._cuda.call("cuMemRelease", self._handle)


class Vmm(_Mapped):
    """cuMemCreate, as of torch's expandable segments; exported from its address, as libckpt does."""

    def __init__(self, gpu: Gpu, size: int, handle_types: int = POSIX_FD) -> None:
        prop = _AllocationProp(_PINNED, handle_types, _Location(_ON_DEVICE, gpu.device))
        super().__init__(gpu, size, gpu.cuda.ask("cuMemCreate", c_ulonglong, size, byref(prop), 0), _READ_WRITE)

    def export(self) -> tuple[dict[str, Any], int | None]:
        handle = self._cuda.ask("cuMemRetainAllocationHandle", c_ulonglong, self.address)
        try:
            return {}, self._cuda.ask("cuMemExportToShareableHandle", c_int, handle, POSIX_FD, 0)
        finally:
            self._cuda.call("cuMemRelease", handle)


class VmmWithoutHandle(Vmm):
    """cuMemCreate without a handle type: nobody can import it, so what is asked is how that is refused."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        super().__init__(gpu, size, handle_types=0)


class ImportedVmm(_Mapped):
    def __init__(self, gpu: Gpu, size: int, exported: dict[str, Any], fd: int | None) -> None:
        handle = gpu.cuda.ask("cuMemImportFromShareableHandle", c_ulonglong, fd, POSIX_FD)
        super().__init__(gpu, size, handle, _READ)


class Pool:
    """A memory pool with descriptors, and one allocation of it."""

    def __init__(self, gpu: Gpu, size: int) -> None:
        self._gpu, self._cuda = gpu, gpu.cuda
        props = _PoolProps(_PINNED, POSIX_FD, _Location(_ON_DEVICE, gpu.device))
        self._pool = self._cuda.ask("cuMemPoolCreate", c_void_p, byref(props))
        self.address = self._cuda.ask("cuMemAllocFromPoolAsync", c_uint64, size, self._pool, gpu.stream)
        gpu.synchronize()

    def export(self) -> tuple[dict[str, Any], int | None]:
        pointer = _PoolPointer()
        fd = self._cuda.ask("cuMemPoolExportToShareableHandle", c_int, self._pool, POSIX_FD, 0)
        self._cuda.call("cuMemPoolExportPointer", byref(pointer), self.address)
        return {"pointer": bytes(pointer).hex()}, fd

    def free(self) -> None:
        self._cuda.call("cuMemFreeAsync", self.address, self._gpu.stream)
        self._gpu.synchronize()
        self._cuda.call("cuMemPoolDestroy", self._pool)


class ImportedPool:
    def __init__(self, gpu: Gpu, size: int, exported: dict[str, Any], fd: int | None) -> None:
        self._gpu, self._cuda = gpu, gpu.cuda
        self._pool = self._cuda.ask("cuMemPoolImportFromShareableHandle", c_void_p, fd, POSIX_FD, 0)
        access = _AccessDesc(_Location(_ON_DEVICE, gpu.device), _READ_WRITE)
        # Refused where the device has access already; where it is missing, the copy says so.
        self._cuda.code("cuMemPoolSetAccess", self._pool, byref(access), 1)
        pointer = _PoolPointer.from_buffer_copy(bytes.fromhex(exported["pointer"]))
        self.address = self._cuda.ask("cuMemPoolImportPointer", c_uint64, self._pool, byref(pointer))

    def free(self) -> None:
        self._cuda.call("cuMemFreeAsync", self.address, self._gpu.stream)
        self._gpu.synchronize()
        self._cuda.call("cuMemPoolDestroy", self._pool)


KINDS: dict[str, tuple[Any, Any]] = {
    "legacy": (Legacy, ImportedLegacy),
    "posix_fd": (Vmm, ImportedVmm),
    "no_handle": (VmmWithoutHandle, ImportedVmm),
    "pool": (Pool, ImportedPool),
}
