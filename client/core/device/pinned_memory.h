// A slot's memory pinned for GPUs: copies into it run at the bus's speed and without the host.
//
// In ranges of 256 MiB, one call each, with a pause between: the driver holds its locks during a call, and one of 94 GB
// was seen to stall training for 11 s. A copy into two of them is refused (CUDA_ERROR_INVALID_VALUE).
#ifndef CKPTD_CLIENT_CORE_DEVICE_PINNED_MEMORY_H_
#define CKPTD_CLIENT_CORE_DEVICE_PINNED_MEMORY_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/device/device.h"

namespace ckptd {

class PinnedMemory {
 public:
  static constexpr uint64_t kRange = 256 << 20;  // bytes; the last one is shorter

  // `memory` is populated and a multiple of a page. On an error nothing stays pinned: copies then go through the
  // driver's own buffers.
  static DeviceError Pin(std::shared_ptr<Device> device, char* memory, uint64_t bytes,
                         std::unique_ptr<PinnedMemory>* out);

  explicit PinnedMemory(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();

 private:
  std::shared_ptr<Device> device_;
  std::vector<char*> ranges_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_DEVICE_PINNED_MEMORY_H_
