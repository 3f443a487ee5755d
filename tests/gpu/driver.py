"""The CUDA driver by ctypes: every function as of CUDA 12.0 through cuGetProcAddress_v2, as ckptd itself finds them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any

AS_OF = 12000
NOT_READY = 600
POSIX_FD = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_EQ = 1  # CU_STREAM_WAIT_VALUE_EQ
_NON_BLOCKING = 1
PORTABLE, DEVICE_MAP = 1, 2  # CU_MEMHOSTREGISTER_…

_OUT = c_void_p  # what is written to
_ADDRESS = c_uint64


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle; a structure, because it is passed by value."""

    _fields_ = [("bytes", ctypes.c_ubyte * 64)]


FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_OUT,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuDeviceGet": (_OUT, c_int),
    "cuDeviceGetName": (_OUT, c_int, c_int),
    "cuDeviceGetUuid": (_OUT, c_int),
    "cuDeviceGetPCIBusId": (_OUT, c_int, c_int),
    "cuDeviceTotalMem": (_OUT, c_int),
    "cuDeviceGetAttribute": (_OUT, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuDevicePrimaryCtxRelease": (c_int,),
    "cuCtxPushCurrent": (c_void_p,),
    "cuCtxPopCurrent": (_OUT,),
    "cuMemGetInfo": (_OUT, _OUT),
    "cuStreamCreateWithPriority": (_OUT, c_uint, c_int),
    "cuStreamDestroy": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuStreamWaitValue64": (c_void_p, _ADDRESS, c_uint64, c_uint),
    "cuStreamWriteValue64": (c_void_p, _ADDRESS, c_uint64, c_uint),
    "cuMemcpyDtoHAsync": (_OUT, _ADDRESS, c_size_t, c_void_p),
    "cuMemcpyHtoDAsync": (_ADDRESS, c_void_p, c_size_t, c_void_p),
    "cuMemAlloc": (_OUT, c_size_t),
    "cuMemFree": (_ADDRESS,),
    "cuMemHostAlloc": (_OUT, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostRegister": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemHostGetDevicePointer": (_OUT, c_void_p, c_uint),
    "cuPointerGetAttribute": (_OUT, c_int, _ADDRESS),
    "cuIpcGetMemHandle": (_OUT, _ADDRESS),
    "cuIpcOpenMemHandle": (_OUT, IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (_ADDRESS,),
    "cuMemCreate": (_OUT, c_size_t, c_void_p, c_ulonglong),
    "cuMemRelease": (c_ulonglong,),
    "cuMemRetainAllocationHandle": (_OUT, c_void_p),
    "cuMemExportToShareableHandle": (_OUT, c_ulonglong, c_int, c_ulonglong),
    "cuMemImportFromShareableHandle": (_OUT, c_void_p, c_int),
    "cuMemAddressReserve": (_OUT, c_size_t, c_size_t, _ADDRESS, c_ulonglong),
    "cuMemAddressFree": (_ADDRESS, c_size_t),
    "cuMemMap": (_ADDRESS, c_size_t, c_size_t, c_ulonglong, c_ulonglong),
    "cuMemUnmap": (_ADDRESS, c_size_t),
    "cuMemSetAccess": (_ADDRESS, c_size_t, c_void_p, c_size_t),
    "cuMemPoolCreate": (_OUT, c_void_p),
    "cuMemPoolDestroy": (c_void_p,),
    "cuMemAllocFromPoolAsync": (_OUT, c_size_t, c_void_p, c_void_p),
    "cuMemFreeAsync": (_ADDRESS, c_void_p),
    "cuMemPoolSetAccess": (c_void_p, c_void_p, c_size_t),
    "cuMemPoolExportToShareableHandle": (_OUT, c_void_p, c_int, c_ulonglong),
    "cuMemPoolImportFromShareableHandle": (_OUT, c_void_p, c_int, c_ulonglong),
    "cuMemPoolExportPointer": (_OUT, _ADDRESS),
    "cuMemPoolImportPointer": (_OUT, c_void_p, c_void_p),
    "cuModuleLoadData": (_OUT, c_char_p),
    "cuModuleGetFunction": (_OUT, c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
}


class NoDriver(RuntimeError):
    """This machine has no libcuda.so.1 that can be used."""


class MissingFunction(RuntimeError):
    """The driver lacks a function: the text is its name."""


class CudaError(RuntimeError):
    """A call of the driver's failed."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call, self.code, self.name = call, code, name


class Driver:
    """The functions of libcuda.so.1. NoDriver where there is none, or one older than 525."""

    def __init__(self) -> None:
        try:
            self._find = ctypes.CDLL("libcuda.so.1").cuGetProcAddress_v2
        except (OSError, AttributeError) as error:
            raise NoDriver(str(error)) from error
        self._find.argtypes = (c_char_p, _OUT, c_int, c_ulonglong, _OUT)
        self._functions: dict[str, Any] = {}

    def _function(self, name: str) -> Any:
        if name not in self._functions:
            address, status = c_void_p(), c_int()
            code = self._find(name.encode(), byref(address), AS_OF, 0, byref(status))
            made = None if code or not address.value else ctypes.CFUNCTYPE(c_int, *FUNCTIONS[name])(address.value)
            self._functions[name] = made
        return self._functions[name]

    def has(self, name: str) -> bool:
        return self._function(name) is not None

    def code(self, name: str, *arguments: Any) -> int:
        """Calls it; the CUresult. MissingFunction."""
        function = self._function(name)
        if function is None:
            raise MissingFunction(name)
        return function(*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls it. CudaError when it fails, MissingFunction."""
        code = self.code(name, *arguments)
        if code:
            raise CudaError(name, code, self.error_name(code))

    def ask(self, name: str, kind: Any, *arguments: Any) -> Any:
        """What a function writes to its first parameter, of this ctypes type."""
        out = kind()
        self.call(name, byref(out), *arguments)
        return out.value

    def error_name(self, code: int) -> str:
        text = c_char_p()
        self.code("cuGetErrorName", code, byref(text))
        return text.value.decode() if text.value else f"CUresult {code}"


class Gpu:
    """GPU `ordinal`'s primary context, current in this thread, and one stream. A context manager."""

    def __init__(self, cuda: Driver, ordinal: int = 0) -> None:
        self.cuda = cuda
        cuda.call("cuInit", 0)
        self.device = cuda.ask("cuDeviceGet", c_int, ordinal)
        self.context = cuda.ask("cuDevicePrimaryCtxRetain", c_void_p, self.device)
        cuda.call("cuCtxPushCurrent", self.context)
        self.stream = self.new_stream()

    def __enter__(self) -> Gpu:
        return self

    # A broken context refuses these; the process is about to end then.
    def __exit__(self, *_: object) -> None:
        self.cuda.code("cuStreamDestroy", self.stream)
        self.cuda.code("cuCtxPopCurrent", byref(c_void_p()))
        self.cuda.code("cuDevicePrimaryCtxRelease", self.device)

    def new_stream(self) -> int:
        return self.cuda.ask("cuStreamCreateWithPriority", c_void_p, _NON_BLOCKING, 0)

    def attribute(self, number: int) -> int:
        return self.cuda.ask("cuDeviceGetAttribute", c_int, number, self.device)

    def total_memory(self) -> int:
        """Bytes."""
        return self.cuda.ask("cuDeviceTotalMem", c_size_t, self.device)

    def used_memory(self) -> int:
        """Bytes that all processes use on this GPU, as far as the driver says."""
        free, total = c_size_t(), c_size_t()
        self.cuda.call("cuMemGetInfo", byref(free), byref(total))
        return total.value - free.value

    def make_current(self) -> None:
        """In another thread."""
        self.cuda.call("cuCtxPushCurrent", self.context)

    def copy_out(self, to: int, source: int, size: int, stream: int | None = None) -> None:
        self.cuda.call("cuMemcpyDtoHAsync", to, source, size, stream or self.stream)

    def copy_in(self, to: int, source: int, size: int) -> None:
        self.cuda.call("cuMemcpyHtoDAsync", to, source, size, self.stream)

    def wait_value(self, address: int, value: int) -> None:
        """The stream waits until the word equals `value`."""
        self.cuda.call("cuStreamWaitValue64", self.stream, address, value, _EQ)

    def write_value(self, address: int, value: int) -> None:
        self.cuda.call("cuStreamWriteValue64", self.stream, address, value, 0)

    def synchronize(self, stream: int | None = None) -> None:
        self.cuda.call("cuStreamSynchronize", stream or self.stream)

    def is_done(self) -> bool:
        code = self.cuda.code("cuStreamQuery", self.stream)
        if code not in (0, NOT_READY):
            raise CudaError("cuStreamQuery", code, self.cuda.error_name(code))
        return code == 0


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@contextlib.contextmanager
def registered(cuda: Driver, memory: mmap.mmap, flags: int = PORTABLE) -> Iterator[None]:
    """Pins a mapping for the GPU."""
    host = address_of(memory)
    cuda.call("cuMemHostRegister", host, len(memory), flags)
    try:
        yield
    finally:
        cuda.code("cuMemHostUnregister", host)


@contextlib.contextmanager
def pinned(cuda: Driver, size: int) -> Iterator[mmap.mmap]:
    """`size` bytes of populated tmpfs memory, as a slot of ckptd's is, pinned."""
    fd = os.memfd_create("ckptd-gpu-test")
    os.posix_fallocate(fd, 0, size)
    memory = mmap.mmap(fd, size)
    os.close(fd)
    with registered(cuda, memory):
        yield memory
