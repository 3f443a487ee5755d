#include "client/src/lane.h"

#include "client/src/failure.h"

namespace ckptd {

int32_t DeviceFails(int ordinal, const DeviceError& error) {
  return Fail(code::DEVICE, "GPU %d: %s", ordinal, Sentence(error).c_str());
}

int32_t Lane::Open(int ordinal, std::shared_ptr<Lane>* out) {
  std::unique_ptr<Device> device;
  if (DeviceError error = Device::Attach(ordinal, &device); !error.ok()) return DeviceFails(ordinal, error);
  auto lane = std::make_shared<Lane>(std::move(device));
  ContextScope scope(lane->device());
  DeviceError error = scope.error();
  if (error.ok()) error = lane->CopyStream::Open();
  if (error.ok()) error = lane->device().CreateEvent(&lane->begin_);
  if (!error.ok()) return DeviceFails(ordinal, error);
  *out = std::move(lane);
  return 0;
}

Lane::~Lane() {
  ContextScope scope(device());
  if (scope.error().ok() && begin_.handle != nullptr) (void)device().DestroyEvent(begin_);
}

DeviceError Lane::FollowCaller() {
  if (DeviceError error = device().Record(begin_, caller_); !error.ok()) return error;
  return device().Wait(stream(), begin_);
}

DeviceError Lane::HoldCaller() {
  if (DeviceError error = MarkEnd(); !error.ok()) return error;
  return HoldUntilEnd(caller_);
}

DeviceError DeviceBlock::Allocate(std::shared_ptr<Lane> lane, uint64_t bytes, bool shareable,
                                  std::unique_ptr<DeviceBlock>* out) {
  const Device& device = lane->device();
  ContextScope scope(device);
  if (!scope.error().ok()) return scope.error();
  ImportedAllocation memory;
  bool made = shareable && device.facts().posix_fd && AllocateShareable(device, bytes, &memory).ok();
  DeviceError error;
  if (!made) {
    memory = {};
    error = device.Allocate(bytes, &memory.base);
  }
  if (error.ok()) *out = std::make_unique<DeviceBlock>(std::move(lane), memory);
  return error;
}

DeviceBlock::~DeviceBlock() {
  ContextScope scope(lane_->device());
  if (!scope.error().ok()) return;
  (void)(memory_.kind == HandleKind::kNone ? lane_->device().Free(memory_.base) : Close(memory_));
}

}  // namespace ckptd
