"""What this machine is: the device, its attributes, the runtime around it, /dev/shm, limits. As a script: the child
that asks the driver."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import mmap
import os
import pathlib
import platform
import resource
import shutil
import subprocess
import time
from typing import Any

from child import Child, Port
from driver import FUNCTIONS, PORTABLE, CudaError, Driver, Gpu, address_of, pinned
from results import Part, Skip, Wrong

_NEEDS = 3.0  # seconds a case
_PINNED_BYTES = 64 << 20  # above what MEMLOCK allows by default
_RANGE_BYTES = 1 << 20
_ATTRIBUTES = {  # CU_DEVICE_ATTRIBUTE_…
    "compute_mode": 20,
    "integrated": 18,
    "async_engine_count": 40,
    "unified_addressing": 41,
    "compute_capability_major": 75,
    "compute_capability_minor": 76,
    "pageable_memory_access": 88,
    "compute_preemption_supported": 90,
    "can_flush_remote_writes": 98,
    "host_register_supported": 99,
    "virtual_memory_management_supported": 102,
    "handle_type_posix_file_descriptor_supported": 103,
    "gpu_direct_rdma_with_cuda_vmm_supported": 110,
    "read_only_host_register_supported": 113,
    "memory_pools_supported": 115,
    "gpu_direct_rdma_supported": 116,
    "mempool_supported_handle_types": 119,
    "can_use_64_bit_stream_mem_ops": 122,
    "can_use_stream_wait_value_nor": 123,
    "ipc_event_supported": 125,
    "handle_type_fabric_supported": 128,
    "mps_enabled": 133,
    "host_numa_id": 134,
}
_FILES = {
    "kernel": "/proc/version",
    "nvidia_module": "/proc/driver/nvidia/version",
    "ptrace_scope": "/proc/sys/kernel/yama/ptrace_scope",
    "shmem_huge_pages": "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
    "memory_cgroup_limit": "/sys/fs/cgroup/memory.max",
}
_SMI_SECONDS = 10
_SMI_FIELDS = "name,driver_version,compute_mode,persistence_mode,mig.mode.current,memory.total,memory.used"


class Asker:
    """What the messages ask."""

    def device(self) -> dict[str, Any]:
        cuda = Driver()
        began = time.monotonic()
        cuda.call("cuInit", 0)
        initialized = time.monotonic()
        self._gpu = Gpu(cuda)
        name, pci, uuid = (ctypes.create_string_buffer(size) for size in (256, 64, 17))
        cuda.call("cuDeviceGetName", name, 256, self._gpu.device)
        cuda.call("cuDeviceGetPCIBusId", pci, 64, self._gpu.device)
        cuda.call("cuDeviceGetUuid", uuid, self._gpu.device)
        return {
            "name": name.value.decode(),
            "driver": cuda.ask("cuDriverGetVersion", ctypes.c_int),
            "memory_bytes": self._gpu.total_memory(),
            "pci": pci.value.decode(),
            "uuid": uuid.raw[:16].hex(),
            "init_seconds": initialized - began,
            "context_seconds": time.monotonic() - initialized,
        }

    def attributes(self) -> dict[str, Any]:
        return {name: self._gpu.attribute(number) for name, number in _ATTRIBUTES.items()}

    def missing(self) -> dict[str, Any]:
        return {"missing_functions": [name for name in FUNCTIONS if not self._gpu.cuda.has(name)]}

    def used(self) -> dict[str, Any]:
        return {"bytes": self._gpu.used_memory()}

    def pin(self) -> dict[str, Any]:
        began = time.monotonic()
        with pinned(self._gpu.cuda, _PINNED_BYTES):
            return {"bytes": _PINNED_BYTES, "seconds_with_population": time.monotonic() - began}

    def cross(self) -> dict[str, Any]:
        """One copy into two ranges that were pinned one by one and follow each other."""
        with contextlib.ExitStack() as stack:
            memory = stack.enter_context(mmap.mmap(-1, 2 * _RANGE_BYTES))
            first, device = address_of(memory), self._gpu.cuda.ask("cuMemAlloc", ctypes.c_uint64, 2 * _RANGE_BYTES)
            stack.callback(self._gpu.cuda.call, "cuMemFree", device)
            for at in (first, first + _RANGE_BYTES):
                self._gpu.cuda.call("cuMemHostRegister", at, _RANGE_BYTES, PORTABLE)
                stack.callback(self._gpu.cuda.call, "cuMemHostUnregister", at)
            self._gpu.copy_out(first, device, _RANGE_BYTES)
            self._gpu.synchronize()
            try:
                self._gpu.copy_out(first, device, 2 * _RANGE_BYTES)
                return {"across": "accepted"}
            except CudaError as error:
                return {"across": error.name}
            finally:
                self._gpu.synchronize()


def _read(path: str) -> str:
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError as error:
        return f"unreadable: {error.strerror}"


def _torch_version() -> str:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def _machine(values: dict[str, Any]) -> None:
    values.update({name: _read(path) for name, path in _FILES.items()})
    values["cpus"], values["python"], values["torch"] = os.cpu_count(), platform.python_version(), _torch_version()
    values["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    values["user"] = os.geteuid()
    fields = dict(line.split(":", 1) for line in _read("/proc/self/status").splitlines())
    values["capabilities"] = fields["CapEff"].strip()


def _shared_memory(values: dict[str, Any]) -> None:
    found = os.statvfs("/dev/shm")
    values["bytes"], values["free_bytes"] = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    mounts = [line.split() for line in _read("/proc/self/mounts").splitlines()]
    values["type"] = next((fields[2] for fields in mounts if fields[1] == "/dev/shm"), "not a mount")
    if values["type"] != "tmpfs":
        raise Wrong("/dev/shm is no tmpfs")


def _limits(values: dict[str, Any]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    values.update(memlock_soft=soft, memlock_hard=hard)


def nvidia_smi(fields: str) -> dict[str, str]:
    """What it says of the first GPU. Skip where it says nothing."""
    if shutil.which("nvidia-smi") is None:
        raise Skip("no nvidia-smi")
    command = ["nvidia-smi", "--id=0", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Skip(f"nvidia-smi: no answer in {_SMI_SECONDS} s") from error
    if done.returncode:
        raise Skip(f"nvidia-smi: {(done.stderr or done.stdout).strip()}")
    return dict(zip(fields.split(","), done.stdout.strip().split(", "), strict=False))


def _smi(values: dict[str, Any]) -> None:
    values.update(nvidia_smi(_SMI_FIELDS))


_WITHOUT_A_DRIVER = {"machine": _machine, "/dev/shm": _shared_memory, "limits": _limits, "nvidia-smi": _smi}


def _ask(values: dict[str, Any], asker: Child, do: str) -> None:
    values.update(asker.ask(do))


def _second_context(values: dict[str, Any], part: Part, asker: Child) -> None:
    before = asker.ask("used")["bytes"]
    with Child("probe.py", part.left, part.log) as second:
        values["seconds"] = second.ask("device")["context_seconds"]
        values["bytes"] = asker.ask("used")["bytes"] - before


def run(part: Part) -> None:
    for case, question in _WITHOUT_A_DRIVER.items():
        part.ask(case, question, needs=0)
    with Child("probe.py", part.left, part.log) as asker:
        if not part.ask("device", _ask, asker, "device", needs=_NEEDS):
            return
        part.ask("attributes", _ask, asker, "attributes", needs=0)
        part.ask("functions", _ask, asker, "missing", needs=0)
        part.ask("pinned memory above MEMLOCK", _ask, asker, "pin", needs=_NEEDS)
        part.ask("a copy into two pinned ranges", _ask, asker, "cross", needs=_NEEDS)
        part.ask("a second process's context", _second_context, part, asker, needs=_NEEDS)


if __name__ == "__main__":
    asking = Asker()
    Port().serve({name: getattr(asking, name) for name in ("device", "attributes", "missing", "used", "pin", "cross")})
