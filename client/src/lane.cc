#include "client/src/lane.h"

#include <algorithm>

#include "client/src/failure.h"

namespace ckptd {
namespace {

constexpr uint64_t kMostPerCopy = 64 << 20;

}  // namespace

int32_t DeviceFails(int ordinal, const DeviceError& error) {
  return Fail(code::DEVICE, "GPU %d: %s", ordinal, Sentence(error).c_str());
}

int32_t Lane::Open(int ordinal, std::shared_ptr<Lane>* out) {
  std::unique_ptr<Device> device;
  if (DeviceError error = Device::Attach(ordinal, &device); !error.ok()) return DeviceFails(ordinal, error);
  auto lane = std::make_shared<Lane>(std::move(device));
  ContextScope scope(lane->device());
  DeviceError error = scope.error();
  if (error.ok()) error = lane->OpenEvents();
  if (!error.ok()) return DeviceFails(ordinal, error);
  *out = std::move(lane);
  return 0;
}

DeviceError Lane::OpenEvents() {
  if (DeviceError error = device_->CreateStream(&stream_); !error.ok()) return error;
  if (DeviceError error = device_->CreateEvent(&begin_); !error.ok()) return error;
  return device_->CreateEvent(&end_);
}

// Errors cannot be helped here: in a broken context nothing can be given back, and the process is about to end.
Lane::~Lane() {
  ContextScope scope(*device_);
  if (!scope.error().ok()) return;
  for (DeviceEvent event : chunks_) (void)device_->DestroyEvent(event);
  if (begin_.handle != nullptr) (void)device_->DestroyEvent(begin_);
  if (end_.handle != nullptr) (void)device_->DestroyEvent(end_);
  if (stream_.handle != nullptr) (void)device_->DestroyStream(stream_);
}

DeviceError Lane::FollowCaller() {
  if (DeviceError error = device_->Record(begin_, caller_); !error.ok()) return error;
  return device_->Wait(stream_, begin_);
}

DeviceError Lane::HoldCaller() {
  if (DeviceError error = device_->Record(end_, stream_); !error.ok()) return error;
  return device_->Wait(caller_, end_);
}

DeviceError Lane::CopyOut(char* to, DeviceAddress from, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += kMostPerCopy) {
    DeviceError error = device_->CopyOut(to + at, from + at, std::min(kMostPerCopy, bytes - at), stream_);
    if (!error.ok()) return error;
  }
  return {};
}

DeviceError Lane::MarkChunk(uint64_t chunk) {
  while (chunks_.size() <= chunk) {
    DeviceEvent event;
    if (DeviceError error = device_->CreateEvent(&event); !error.ok()) return error;
    chunks_.push_back(event);
    marked_.push_back(false);
  }
  marked_[chunk] = true;
  return device_->Record(chunks_[chunk], stream_);
}

bool Lane::IsMarked(uint64_t chunk) const { return chunk < marked_.size() && marked_[chunk]; }

DeviceError Lane::AwaitChunk(uint64_t chunk) { return device_->Synchronize(chunks_[chunk]); }

DeviceError Lane::MarkEnd() {
  DeviceError error = device_->Record(end_, stream_);
  end_marked_ = error.ok();
  return error;
}

// A mark of the capture before would end the wait too early, and the slot would be given back under a copy.
DeviceError Lane::AwaitEnd() { return end_marked_ ? device_->Synchronize(end_) : device_->Synchronize(stream_); }

DeviceError Lane::HoldUntilEnd(DeviceStream stream) const { return device_->Wait(stream, end_); }

void Lane::Forget() { marked_.assign(marked_.size(), false); }

DeviceError DeviceBlock::Allocate(std::shared_ptr<Lane> lane, uint64_t bytes, std::unique_ptr<DeviceBlock>* out) {
  ContextScope scope(lane->device());
  if (!scope.error().ok()) return scope.error();
  DeviceAddress address = 0;
  DeviceError error = lane->device().Allocate(bytes, &address);
  if (error.ok()) *out = std::make_unique<DeviceBlock>(std::move(lane), address);
  return error;
}

DeviceBlock::~DeviceBlock() {
  ContextScope scope(lane_->device());
  if (scope.error().ok()) (void)lane_->device().Free(address_);
}

}  // namespace ckptd
