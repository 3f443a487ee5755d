#include "client/core/device/allocation.h"

#include <cstring>

#include "client/core/device/driver.h"

namespace ckptd {
namespace {

static_assert(sizeof(CUipcMemHandle) == 64 && sizeof(CUmemFabricHandle) == 64);

struct Attributes {
  unsigned memory_type = 0;
  int ordinal = -1;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  unsigned long long buffer_id = 0;
  int legacy = 0;
  uint64_t handle_types = 0;
};

DeviceError Ask(const Driver& driver, DeviceAddress address, Attributes* out) {
  CUpointer_attribute names[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE,
      CU_POINTER_ATTRIBUTE_BUFFER_ID,
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
  };
  void* values[] = {&out->memory_type, &out->ordinal, &out->base,        &out->bytes,
                    &out->buffer_id,   &out->legacy,  &out->handle_types};
  return CKPTD_CUDA(driver, cuPointerGetAttributes, sizeof names / sizeof names[0], names, values, address);
}

HandleKind KindOf(const Attributes& attributes) {
  if (attributes.legacy != 0) return HandleKind::kLegacy;
  if ((attributes.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) return HandleKind::kPosixFd;
  if ((attributes.handle_types & CU_MEM_HANDLE_TYPE_FABRIC) != 0) return HandleKind::kFabric;
  return HandleKind::kNone;
}

DeviceError ExportLegacy(const Driver& driver, DeviceAddress base, DeviceHandle* out) {
  CUipcMemHandle handle = {};
  DeviceError error = CKPTD_CUDA(driver, cuIpcGetMemHandle, &handle, base);
  memcpy(out->bytes.data(), &handle, sizeof handle);
  return error;
}

DeviceError ExportMemory(const Driver& driver, const DeviceAllocation& allocation, DeviceHandle* out) {
  CUmemGenericAllocationHandle memory = 0;
  void* address = reinterpret_cast<void*>(allocation.base);
  DeviceError error = CKPTD_CUDA(driver, cuMemRetainAllocationHandle, &memory, address);
  if (!error.ok()) return error;
  bool fd = allocation.kind == HandleKind::kPosixFd;
  void* target = fd ? static_cast<void*>(&out->fd) : out->bytes.data();
  CUmemAllocationHandleType type = fd ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_FABRIC;
  error = CKPTD_CUDA(driver, cuMemExportToShareableHandle, target, memory, type, 0);
  driver.cuMemRelease(memory);
  return error;
}

// Undoes what was done of a mapping; the later arguments are zero where it did not come so far.
void Undo(const Driver& driver, CUmemGenericAllocationHandle memory, CUdeviceptr base, uint64_t bytes, bool mapped) {
  if (mapped) driver.cuMemUnmap(base, bytes);
  if (base != 0) driver.cuMemAddressFree(base, bytes);
  driver.cuMemRelease(memory);
}

DeviceError SetAccess(const Driver& driver, const Device& device, CUmemAccess_flags flags, CUdeviceptr base,
                      uint64_t bytes) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device.ordinal();
  access.flags = flags;
  return CKPTD_CUDA(driver, cuMemSetAccess, base, bytes, &access, 1);
}

DeviceError MapMemory(const Driver& driver, const Device& device, CUmemAccess_flags flags, ImportedAllocation* out) {
  CUdeviceptr base = 0;
  DeviceError error = CKPTD_CUDA(driver, cuMemAddressReserve, &base, out->bytes, 0, 0, 0);
  bool mapped = false;
  if (error.ok()) {
    error = CKPTD_CUDA(driver, cuMemMap, base, out->bytes, 0, out->memory, 0);
    mapped = error.ok();
  }
  if (error.ok()) error = SetAccess(driver, device, flags, base, out->bytes);
  // Drivers may refuse a mapping that is read-only.
  if (mapped && error.code == CUDA_ERROR_INVALID_VALUE) {
    error = SetAccess(driver, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, base, out->bytes);
  }
  if (!error.ok()) {
    Undo(driver, out->memory, base, out->bytes, mapped);
    return error;
  }
  out->base = base;
  return {};
}

DeviceError ImportMemory(const Driver& driver, const Device& device, const DeviceHandle& handle,
                         ImportedAllocation* out) {
  bool fd = handle.kind == HandleKind::kPosixFd;
  void* source = const_cast<uint8_t*>(handle.bytes.data());
  if (fd) source = reinterpret_cast<void*>(static_cast<intptr_t>(handle.fd));
  CUmemAllocationHandleType type = fd ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_FABRIC;
  CUmemGenericAllocationHandle memory = 0;
  DeviceError error = CKPTD_CUDA(driver, cuMemImportFromShareableHandle, &memory, source, type);
  if (!error.ok()) return error;
  out->memory = memory;
  return MapMemory(driver, device, CU_MEM_ACCESS_FLAGS_PROT_READ, out);
}

}  // namespace

DeviceError AllocateShareable(const Device& device, uint64_t bytes, ImportedAllocation* out) {
  const Driver* driver = nullptr;
  if (DeviceError error = Driver::Load(&driver); !error.ok()) return error;
  CUmemAllocationProp wanted = {};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device.ordinal();
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t unit = 0;
  DeviceError error =
      CKPTD_CUDA(*driver, cuMemGetAllocationGranularity, &unit, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (!error.ok()) return error;
  *out = {};
  out->kind = HandleKind::kPosixFd;
  out->bytes = (bytes + unit - 1) / unit * unit;
  CUmemGenericAllocationHandle memory = 0;
  error = CKPTD_CUDA(*driver, cuMemCreate, &memory, out->bytes, &wanted, 0);
  if (!error.ok()) return error;
  out->memory = memory;
  return MapMemory(*driver, device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, out);
}

DeviceError FindAllocation(DeviceAddress address, DeviceAllocation* out) {
  const Driver* driver = nullptr;
  if (DeviceError error = Driver::Load(&driver); !error.ok()) return error;
  Attributes attributes;
  if (DeviceError error = Ask(*driver, address, &attributes); !error.ok()) return error;
  if (attributes.base == 0 || address < attributes.base || address - attributes.base >= attributes.bytes) {
    return {DeviceFault::kRefused, CUDA_ERROR_NOT_FOUND, "cuPointerGetAttributes"};
  }
  out->ordinal = attributes.memory_type == CU_MEMORYTYPE_DEVICE ? attributes.ordinal : -1;
  out->base = attributes.base;
  out->bytes = attributes.bytes;
  out->buffer_id = attributes.buffer_id;
  out->kind = KindOf(attributes);
  return {};
}

DeviceError Export(const DeviceAllocation& allocation, DeviceHandle* out) {
  const Driver* driver = nullptr;
  if (DeviceError error = Driver::Load(&driver); !error.ok()) return error;
  out->kind = allocation.kind;
  if (allocation.kind == HandleKind::kLegacy) return ExportLegacy(*driver, allocation.base, out);
  if (allocation.kind != HandleKind::kNone) return ExportMemory(*driver, allocation, out);
  return {DeviceFault::kRefused, CUDA_ERROR_NOT_SUPPORTED, "export of an allocation that has no handle"};
}

DeviceError Import(const Device& device, const DeviceHandle& handle, uint64_t bytes, ImportedAllocation* out) {
  const Driver* driver = nullptr;
  if (DeviceError error = Driver::Load(&driver); !error.ok()) return error;
  *out = {};
  out->kind = handle.kind;
  out->bytes = bytes;
  if (handle.kind != HandleKind::kLegacy) return ImportMemory(*driver, device, handle, out);
  CUipcMemHandle legacy = {};
  memcpy(&legacy, handle.bytes.data(), sizeof legacy);
  CUdeviceptr base = 0;
  DeviceError error = CKPTD_CUDA(*driver, cuIpcOpenMemHandle, &base, legacy, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  out->base = base;
  return error;
}

DeviceError Close(const ImportedAllocation& imported) {
  const Driver* driver = nullptr;
  if (DeviceError error = Driver::Load(&driver); !error.ok()) return error;
  if (imported.kind == HandleKind::kLegacy) return CKPTD_CUDA(*driver, cuIpcCloseMemHandle, imported.base);
  DeviceError error = CKPTD_CUDA(*driver, cuMemUnmap, imported.base, imported.bytes);
  driver->cuMemAddressFree(imported.base, imported.bytes);
  driver->cuMemRelease(imported.memory);
  return error;
}

}  // namespace ckptd
