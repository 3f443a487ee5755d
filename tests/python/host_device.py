"""A GPU for torch's CPU tensors: the host device of client/core/device/testing in place of the CUDA driver.

Memory of `Gpu.like` is device memory to libckpt, and a plain tensor to torch, which computes on it at once. What a
kernel would do in the order of the stream, wait, is done by `Gpu.sync` before each step of an optimizer, and before
forwards that write buffers.
"""

import ctypes
import os
import pathlib

import torch
from ckptd import device
from torch.optim.optimizer import register_optimizer_step_pre_hook

NON_BLOCKING = 1
SEGMENT = 2 << 20


class Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "allocations", "allocated_bytes", "imports", "pinned_ranges", "pinned_bytes", "largest_pin", "streams",
            "events", "primary_retains", "copies", "copied_bytes", "largest_copy",
        )
    ]  # fmt: skip


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location), ("meta", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]  # fmt: skip


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class Gpu:
    """GPU 0 and one stream on it. From here on ckptd sees tensors in its memory as the device's.

    shareable: its memory comes from cuMemCreate, as with PyTorch's expandable segments.
    """

    def __init__(self, build, shareable=False):
        self.segment = None  # (next free address, end)
        self.shareable = shareable
        # By its path now; libckpt's own dlopen finds it under the same name.
        self.driver = ctypes.CDLL(str(pathlib.Path(build) / "lib" / "fakecuda" / "libcuda.so.1"))
        self.ranges = []
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self._call("cuCtxPushCurrent_v2", context)
        self.stream = self.new_stream()
        self._empty_like = device.empty_like
        device.ordinal = self.ordinal
        device.empty_like = lambda tensor: self.like(tensor) if self.has(tensor) else self._empty_like(tensor)
        device.current_streams = lambda ordinals: [(number, self.stream.value) for number in ordinals]

    def _call(self, name, *arguments):
        result = getattr(self.driver, name)(*arguments)
        assert result == 0, f"{name}: {result}"

    def new_stream(self):
        stream = ctypes.c_void_p()
        self._call("cuStreamCreateWithPriority", ctypes.byref(stream), NON_BLOCKING, 0)
        return stream

    def like(self, tensor):
        """Memory of the GPU with the value of `tensor`."""
        count = max(1, tensor.numel()) * tensor.element_size()
        address = self.reserve(count) if self.shareable else self.allocate(count)
        self.ranges.append((address, address + count))
        memory = (ctypes.c_char * count).from_address(address)
        flat = torch.frombuffer(memory, dtype=tensor.dtype)[: tensor.numel()]
        return flat.view(tensor.shape).copy_(tensor.detach())

    def allocate(self, count):
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        return address.value

    def reserve(self, count):
        """Out of segments that another process can open by descriptor."""
        count = (count + 511) // 512 * 512
        if self.segment is None or self.segment[0] + count > self.segment[1]:
            size = max(SEGMENT, (count + SEGMENT - 1) // SEGMENT * SEGMENT)
            address, handle = ctypes.c_uint64(), ctypes.c_uint64()
            prop = AllocationProp(type=1, handle_types=1, location=Location(1, 0))
            self._call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(prop), 0)
            self._call("cuMemAddressReserve", ctypes.byref(address), ctypes.c_size_t(size), 0, 0, 0)
            self._call("cuMemMap", address, ctypes.c_size_t(size), 0, handle, 0)
            self._call("cuMemSetAccess", address, ctypes.c_size_t(size), ctypes.byref(Access(Location(1, 0), 3)), 1)
            self._call("cuMemRelease", handle)
            self.segment = (address.value, address.value + size)
        begin, end = self.segment
        self.segment = (begin + count, end)
        return begin

    def has(self, tensor):
        return any(begin <= tensor.data_ptr() < end for begin, end in self.ranges)

    def ordinal(self, tensor):
        return 0 if self.has(tensor) else device.HOST

    def take(self, module):
        """`module.cuda()`."""
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data = self.like(tensor.data)

    def take_state(self, optimizer):
        """Moments to the GPU; `step` stays on the host, as torch has it."""
        for held in optimizer.state.values():
            for key, value in held.items():
                if value.dim() and not self.has(value):
                    held[key] = self.like(value)

    def sync(self):
        self._call("cuStreamSynchronize", self.stream)

    def updates_in_order(self):
        """Steps of optimizers happen when the stream comes to them. After the checkpointer has hooked in."""
        return register_optimizer_step_pre_hook(lambda *_: self.sync())

    def forwards_in_order(self, module):
        """For modules whose forward writes buffers, as BatchNorm's does."""
        return module.register_forward_pre_hook(lambda *_: self.sync())

    def slow(self, microseconds_each_mib):
        self.driver.fakecuda_rate(ctypes.c_uint64(max(1, (1 << 20) // microseconds_each_mib)))

    def stall(self):
        """What is enqueued from now on, the GPU does not come to for a while."""
        self.slow(1 << 20)
        memory = self.allocate(1 << 20)
        host = (ctypes.c_char * (1 << 20))()
        self._call("cuMemcpyDtoHAsync_v2", host, ctypes.c_uint64(memory), ctypes.c_size_t(1 << 20), self.stream)
        self.kept = host

    def counts(self):
        counts = Counts()
        self.driver.fakecuda_count(ctypes.byref(counts))
        return counts


def build_of_environment():
    return os.environ["CKPTD_BUILD"]
