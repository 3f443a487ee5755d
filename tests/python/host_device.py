"""A GPU for torch's CPU tensors: the host device of client/core/device/testing in place of the CUDA driver.

Memory of `Gpu.like` is device memory to libckpt, and a plain tensor to torch, which computes on it at once. What a
kernel would do in the order of the stream, wait, is done by `Gpu.sync` before each step of an optimizer.
"""

import ctypes
import os
import pathlib

import torch
from ckptd import device
from torch.optim.optimizer import register_optimizer_step_pre_hook

NON_BLOCKING = 1


class Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "allocations", "allocated_bytes", "imports", "pinned_ranges", "pinned_bytes", "largest_pin", "streams",
            "events", "primary_retains", "copies", "copied_bytes", "largest_copy",
        )
    ]  # fmt: skip


class Gpu:
    """GPU 0 and one stream on it. From here on ckptd sees tensors in its memory as the device's."""

    def __init__(self, build):
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
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        self.ranges.append((address.value, address.value + count))
        memory = (ctypes.c_char * count).from_address(address.value)
        flat = torch.frombuffer(memory, dtype=tensor.dtype)[: tensor.numel()]
        return flat.view(tensor.shape).copy_(tensor.detach())

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

    def slow(self, microseconds_each_mib):
        self.driver.fakecuda_rate(ctypes.c_uint64(max(1, (1 << 20) // microseconds_each_mib)))

    def counts(self):
        counts = Counts()
        self.driver.fakecuda_count(ctypes.byref(counts))
        return counts


def build_of_environment():
    return os.environ["CKPTD_BUILD"]
