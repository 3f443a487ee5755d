#include "client/core/device/copy_stream.h"

#include <algorithm>

#include "client/core/device/pinned_memory.h"

namespace ckptd {
namespace {

constexpr uint64_t kMostPerCopy = 64 << 20;
static_assert(PinnedMemory::kRange % kMostPerCopy == 0);

}  // namespace

DeviceError CopyStream::Open() {
  if (DeviceError error = device_->CreateStream(&stream_); !error.ok()) return error;
  return device_->CreateEvent(&end_);
}

// Errors cannot be helped here: in a broken context nothing can be given back, and the process is about to end.
CopyStream::~CopyStream() {
  ContextScope scope(*device_);
  if (!scope.error().ok()) return;
  for (DeviceEvent event : stretches_) (void)device_->DestroyEvent(event);
  if (end_.handle != nullptr) (void)device_->DestroyEvent(end_);
  if (stream_.handle != nullptr) (void)device_->DestroyStream(stream_);
}

DeviceError CopyStream::CopyOut(char* slot, uint64_t offset, DeviceAddress from, uint64_t bytes) {
  const uint64_t end = offset + bytes;
  for (uint64_t at = offset; at < end;) {
    const uint64_t until = std::min(end, at - at % kMostPerCopy + kMostPerCopy);
    DeviceError error = device_->CopyOut(slot + at, from + (at - offset), until - at, stream_);
    if (!error.ok()) return error;
    at = until;
  }
  return {};
}

DeviceError CopyStream::Mark(uint64_t stretch) {
  while (stretches_.size() <= stretch) {
    DeviceEvent event;
    if (DeviceError error = device_->CreateEvent(&event); !error.ok()) return error;
    stretches_.push_back(event);
    marked_.push_back(false);
  }
  marked_[stretch] = true;
  return device_->Record(stretches_[stretch], stream_);
}

bool CopyStream::IsMarked(uint64_t stretch) const { return stretch < marked_.size() && marked_[stretch]; }

DeviceError CopyStream::Await(uint64_t stretch) { return device_->Synchronize(stretches_[stretch]); }

DeviceError CopyStream::Query(uint64_t stretch) const { return device_->Query(stretches_[stretch]); }

DeviceError CopyStream::MarkEnd() {
  DeviceError error = device_->Record(end_, stream_);
  end_marked_ = error.ok();
  return error;
}

// A mark of the capture before would end the wait too early, and the slot would be given back under a copy.
DeviceError CopyStream::AwaitEnd() { return end_marked_ ? device_->Synchronize(end_) : device_->Synchronize(stream_); }

DeviceError CopyStream::QueryEnd() const { return device_->Query(end_); }

DeviceError CopyStream::HoldUntilEnd(DeviceStream stream) const { return device_->Wait(stream, end_); }

void CopyStream::Forget() {
  marked_.assign(marked_.size(), false);
  end_marked_ = false;
}

}  // namespace ckptd
