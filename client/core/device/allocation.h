// The allocations behind device addresses: which one an address lies in, whether it is still the same one, and how
// another process may reach it.
//
// A handle is made once per allocation, never per tensor: PyTorch's tensors share segments of 2 MiB and more.
#ifndef CKPTD_CLIENT_CORE_DEVICE_ALLOCATION_H_
#define CKPTD_CLIENT_CORE_DEVICE_ALLOCATION_H_

#include <array>
#include <cstdint>

#include "client/core/device/device.h"

namespace ckptd {

// How an allocation can be handed over.
enum class HandleKind : uint8_t {
  kNone,     // not at all: its bytes are pushed
  kLegacy,   // cuMemAlloc: 64 bytes
  kPosixFd,  // cuMemCreate, PyTorch's expandable segments: a descriptor
  kFabric,   // cuMemCreate on a fabric: 64 bytes
};

struct DeviceAllocation {
  int ordinal = -1;  // of the device; -1: host memory
  DeviceAddress base = 0;
  uint64_t bytes = 0;
  uint64_t buffer_id = 0;  // of the driver, never used twice in a process
  HandleKind kind = HandleKind::kNone;

  friend bool operator==(const DeviceAllocation&, const DeviceAllocation&) = default;
};

// The allocation that `address` lies in. About a microsecond. No context is needed. kRefused: it lies in none.
DeviceError FindAllocation(DeviceAddress address, DeviceAllocation* out);

// What another process needs to open it. `fd` is the receiver's to close; bytes are set for the other kinds.
struct DeviceHandle {
  HandleKind kind = HandleKind::kNone;
  int fd = -1;
  std::array<uint8_t, 64> bytes = {};
};

// With a ContextScope.
DeviceError Export(const DeviceAllocation& allocation, DeviceHandle* out);

// An allocation of another process, mapped here. With a ContextScope of the same GPU. Leaves the descriptor open.
struct ImportedAllocation {
  HandleKind kind = HandleKind::kNone;
  DeviceAddress base = 0;
  uint64_t bytes = 0;
  uint64_t memory = 0;  // CUmemGenericAllocationHandle
};

DeviceError Import(const Device& device, const DeviceHandle& handle, uint64_t bytes, ImportedAllocation* out);
DeviceError Close(const ImportedAllocation& imported);

// New memory of kind kPosixFd: unlike what cuMemAlloc gives, it stays while another process has it open. Rounded up to
// whole units of the driver, of 2 MiB or so. With a ContextScope of the device; freed by Close.
DeviceError AllocateShareable(const Device& device, uint64_t bytes, ImportedAllocation* out);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_DEVICE_ALLOCATION_H_
