// Copies, allocations and handles of the host device.
#include <cuda.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "client/core/device/testing/fake_context.h"
#include "client/core/device/testing/fake_failures.h"
#include "client/core/device/testing/fake_memory.h"

namespace ckptd::fake {
namespace {

// Bytes that are not there break the context instead of the process.
int Move(uint64_t to, uint64_t from, uint64_t bytes) {
  while (Engine::Get().Hanging()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  for (uint64_t at = 0; at < bytes;) {
    iovec local = {reinterpret_cast<void*>(to + at), bytes - at};
    iovec remote = {reinterpret_cast<void*>(from + at), bytes - at};
    ssize_t moved = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (moved <= 0) return CUDA_ERROR_ILLEGAL_ADDRESS;
    at += static_cast<uint64_t>(moved);
  }
  if (uint64_t speed = Counters::Get().rate) std::this_thread::sleep_for(std::chrono::microseconds(bytes / speed));
  return CUDA_SUCCESS;
}

void CountCopy(uint64_t bytes) {
  Counters& counters = Counters::Get();
  counters.copies += 1;
  counters.copied_bytes += bytes;
  uint64_t largest = counters.largest_copy;
  while (largest < bytes && !counters.largest_copy.compare_exchange_weak(largest, bytes)) {
  }
}

// Of device memory: the range lies in segments that follow each other.
bool IsDeviceRange(uint64_t address, uint64_t bytes) {
  for (uint64_t end = address + bytes; address < end;) {
    Segment segment;
    if (!Memory::Get().Find(address, &segment)) return false;
    address = segment.base + segment.bytes;
  }
  return true;
}

// In one pinned range or in none: a driver refuses what crosses from one into the next (H200, driver 580).
bool IsHostRange(const void* host, uint64_t bytes) {
  return host == nullptr || Memory::Get().IsRegistered(host, bytes) || !Memory::Get().TouchesRegistered(host, bytes);
}

CUresult Copy(uint64_t to, uint64_t from, uint64_t bytes, CUstream stream, const void* host) {
  uint64_t device = host == reinterpret_cast<void*>(to) ? from : to;
  if (!IsDeviceRange(device, bytes) || !IsHostRange(host, bytes)) return CUDA_ERROR_INVALID_VALUE;
  CountCopy(bytes);
  Mark mark = Engine::Get().Enqueue(Of(stream), [=] { return Move(to, from, bytes); });
  Segment pinned;
  bool is_pinned = host == nullptr || Memory::Get().IsRegistered(host, bytes) ||
                   Memory::Get().Find(reinterpret_cast<uint64_t>(host), &pinned);
  if (!is_pinned) Engine::Get().Await(mark);
  return CUDA_SUCCESS;
}

CUresult Attribute(const Segment* segment, CUpointer_attribute attribute, void* out) {
  auto set = [&](auto value) {
    memcpy(out, &value, sizeof value);
    return CUDA_SUCCESS;
  };
  bool device = segment != nullptr && segment->kind != Kind::kPinned;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return set(static_cast<unsigned>(segment == nullptr ? 0 : device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return set(device ? segment->ordinal : -2);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return set(segment != nullptr ? segment->base : uint64_t{0});
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return set(segment != nullptr ? segment->bytes : uint64_t{0});
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return set(segment != nullptr ? segment->id : uint64_t{0});
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return set(device && segment->kind == Kind::kLegacy ? 1 : 0);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return set(device && Memory::Get().IsExportable(*segment) ? uint64_t{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR}
                                                                : uint64_t{0});
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace
}  // namespace ckptd::fake

using namespace ckptd::fake;  // NOLINT: this file is the library's face

extern "C" {

FAKECUDA_API CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_READY("cuMemcpyDtoHAsync");
  return Copy(reinterpret_cast<uint64_t>(to), from, bytes, stream, to);
}

FAKECUDA_API CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  FAKE_READY("cuMemcpyHtoDAsync");
  return Copy(to, reinterpret_cast<uint64_t>(from), bytes, stream, from);
}

FAKECUDA_API CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  FAKE_READY("cuMemcpyDtoDAsync");
  if (!IsDeviceRange(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Copy(to, from, bytes, stream, nullptr);
}

FAKECUDA_API CUresult cuMemAlloc(CUdeviceptr* out, size_t bytes) {
  FAKE_READY("cuMemAlloc");
  FAKE_MAY_WAIT();
  uint64_t base = 0;
  int code = Memory::Get().Allocate(Current()->ordinal, bytes, &base);
  *out = base;
  return Result(code);
}

FAKECUDA_API CUresult cuMemFree(CUdeviceptr address) { return Result(Memory::Get().Free(address)); }

FAKECUDA_API CUresult cuMemGetInfo(size_t* free, size_t* total) {
  FAKE_READY("cuMemGetInfo");
  *total = Memory::Get().limit();
  *free = *total - std::min<size_t>(*total, Memory::Get().Used(Current()->ordinal));
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuMemHostAlloc(void** out, size_t bytes, unsigned) {
  FAKE_READY("cuMemHostAlloc");
  FAKE_MAY_WAIT();
  return Result(Memory::Get().AllocatePinned(bytes, out));
}

FAKECUDA_API CUresult cuMemFreeHost(void* address) { return Result(Memory::Get().FreePinned(address)); }

FAKECUDA_API CUresult cuMemHostRegister(void* address, size_t bytes, unsigned) {
  FAKE_READY("cuMemHostRegister");
  FAKE_MAY_WAIT();
  return Result(Memory::Get().Register(address, bytes));
}

FAKECUDA_API CUresult cuMemHostUnregister(void* address) { return Result(Memory::Get().Unregister(address)); }

FAKECUDA_API CUresult cuMemHostGetDevicePointer(CUdeviceptr* out, void* host, unsigned) {
  FAKE_READY("cuMemHostGetDevicePointer");
  Segment segment;
  *out = reinterpret_cast<CUdeviceptr>(host);
  bool pinned = Memory::Get().IsRegistered(host, 1) || Memory::Get().Find(*out, &segment);
  return pinned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FAKECUDA_API CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* names, void** out, CUdeviceptr at) {
  if (int code = Failures::Get().Next("cuPointerGetAttributes")) return Result(code);
  Segment segment;
  bool found = Memory::Get().Find(at, &segment);
  for (unsigned i = 0; i < count; ++i) {
    if (CUresult result = Attribute(found ? &segment : nullptr, names[i], out[i]); result != CUDA_SUCCESS) {
      return result;
    }
  }
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuPointerGetAttribute(void* out, CUpointer_attribute name, CUdeviceptr at) {
  Segment segment;
  if (!Memory::Get().Find(at, &segment)) return CUDA_ERROR_INVALID_VALUE;
  return Attribute(&segment, name, out);
}

FAKECUDA_API CUresult cuIpcGetMemHandle(CUipcMemHandle* out, CUdeviceptr address) {
  FAKE_READY("cuIpcGetMemHandle");
  return Result(Memory::Get().ExportLegacy(address, reinterpret_cast<LegacyHandle*>(out)));
}

FAKECUDA_API CUresult cuIpcOpenMemHandle(CUdeviceptr* out, CUipcMemHandle handle, unsigned) {
  FAKE_READY("cuIpcOpenMemHandle");
  LegacyHandle legacy;
  memcpy(&legacy, &handle, sizeof legacy);
  uint64_t base = 0;
  int code = Memory::Get().OpenLegacy(legacy, &base);
  *out = base;
  return Result(code);
}

FAKECUDA_API CUresult cuIpcCloseMemHandle(CUdeviceptr base) { return Result(Memory::Get().CloseLegacy(base)); }

FAKECUDA_API CUresult cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes, const CUmemAllocationProp* prop,
                                  unsigned long long) {
  FAKE_READY("cuMemCreate");
  uint64_t handle = 0;
  bool exportable = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int code = Memory::Get().Create(prop->location.id, bytes, exportable, &handle);
  *out = handle;
  return Result(code);
}

FAKECUDA_API CUresult cuMemGetAllocationGranularity(size_t* out, const CUmemAllocationProp*,
                                                    CUmemAllocationGranularity_flags) {
  *out = 2 << 20;
  return CUDA_SUCCESS;
}

FAKECUDA_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* address) {
  FAKE_READY("cuMemRetainAllocationHandle");
  uint64_t handle = 0;
  int code = Memory::Get().Retain(reinterpret_cast<uint64_t>(address), &handle);
  *out = handle;
  return Result(code);
}

FAKECUDA_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return Result(Memory::Get().Release(handle));
}

FAKECUDA_API CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                                   CUmemAllocationHandleType type, unsigned long long) {
  FAKE_READY("cuMemExportToShareableHandle");
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  return Result(Memory::Get().ExportFd(handle, static_cast<int*>(out)));
}

FAKECUDA_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* source,
                                                     CUmemAllocationHandleType type) {
  FAKE_READY("cuMemImportFromShareableHandle");
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  uint64_t handle = 0;
  int code = Memory::Get().ImportFd(static_cast<int>(reinterpret_cast<intptr_t>(source)), &handle);
  *out = handle;
  return Result(code);
}

FAKECUDA_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp*, CUmemGenericAllocationHandle) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

FAKECUDA_API CUresult cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  FAKE_READY("cuMemAddressReserve");
  uint64_t base = 0;
  int code = Memory::Get().Reserve(bytes, &base);
  *out = base;
  return Result(code);
}

FAKECUDA_API CUresult cuMemAddressFree(CUdeviceptr base, size_t bytes) {
  return Result(Memory::Get().Unreserve(base, bytes));
}

FAKECUDA_API CUresult cuMemMap(CUdeviceptr base, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                               unsigned long long) {
  FAKE_READY("cuMemMap");
  return Result(Memory::Get().Map(base, bytes, handle));
}

FAKECUDA_API CUresult cuMemUnmap(CUdeviceptr base, size_t bytes) { return Result(Memory::Get().Unmap(base, bytes)); }

FAKECUDA_API CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

}  // extern "C"
