#include "client/src/device_inlet.h"

#include <algorithm>

namespace ckptd {

// A block that may still be read by a copy is not given back: better lost than lent to somebody else.
DeviceInlet::~DeviceInlet() {
  ContextScope scope(lane_->device());
  if (!scope.error().ok()) return;
  const Device& device = lane_->device();
  Block& current = blocks_[current_];
  if (current.memory != nullptr) current.used = true;
  if (current.memory != nullptr && !device.Record(current.left, lane_->stream()).ok()) return;
  for (Block& block : blocks_) {
    if (block.used && !device.Synchronize(block.left).ok()) continue;
    if (block.left.handle != nullptr) (void)device.DestroyEvent(block.left);
    if (block.memory != nullptr) (void)device.FreePinned(block.memory);
  }
}

DeviceError DeviceInlet::Turn() {
  const Device& device = lane_->device();
  Block& full = blocks_[current_];
  if (full.memory != nullptr) {
    if (DeviceError error = device.Record(full.left, lane_->stream()); !error.ok()) return error;
    full.used = true;
    current_ = 1 - current_;
  }
  Block& next = blocks_[current_];
  if (next.used) return device.Synchronize(next.left);
  if (next.memory != nullptr) return {};
  if (DeviceError error = device.CreateEvent(&next.left); !error.ok()) return error;
  void* memory = nullptr;
  DeviceError error = device.AllocatePinned(kBlock, &memory);
  next.memory = static_cast<char*>(memory);
  return error;
}

DeviceError DeviceInlet::Room(uint64_t* bytes, char** out) {
  if (at_ == kBlock) {
    if (DeviceError error = Turn(); !error.ok()) return error;
    at_ = 0;
  }
  *bytes = std::min(*bytes, kBlock - at_);
  *out = blocks_[current_].memory + at_;
  return {};
}

DeviceError DeviceInlet::Send(DeviceAddress to, uint64_t bytes) {
  DeviceError error = lane_->device().CopyIn(to, blocks_[current_].memory + at_, bytes, lane_->stream());
  at_ += bytes;
  return error;
}

}  // namespace ckptd
