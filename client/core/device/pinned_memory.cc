#include "client/core/device/pinned_memory.h"

#include <algorithm>
#include <ctime>

namespace ckptd {
namespace {

constexpr timespec kPause = {0, 1'000'000};  // others get the driver's locks meanwhile

}  // namespace

DeviceError PinnedMemory::Pin(std::shared_ptr<Device> device, char* memory, uint64_t bytes,
                              std::unique_ptr<PinnedMemory>* out) {
  auto pinned = std::make_unique<PinnedMemory>(std::move(device));
  for (uint64_t at = 0; at < bytes; at += kRange) {
    if (at > 0) nanosleep(&kPause, nullptr);
    ContextScope scope(*pinned->device_);
    if (!scope.error().ok()) return scope.error();
    DeviceError error = pinned->device_->Pin(memory + at, std::min(kRange, bytes - at));
    if (!error.ok()) return error;
    pinned->ranges_.push_back(memory + at);
  }
  *out = std::move(pinned);
  return {};
}

PinnedMemory::~PinnedMemory() {
  ContextScope scope(*device_);
  if (!scope.error().ok()) return;
  for (char* range : ranges_) (void)device_->Unpin(range);
}

}  // namespace ckptd
