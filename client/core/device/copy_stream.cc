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
  for (DeviceEvent event : chunks_) (void)device_->DestroyEvent(event);
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

DeviceError CopyStream::MarkChunk(uint64_t chunk) {
  while (chunks_.size() <= chunk) {
    DeviceEvent event;
    if (DeviceError error = device_->CreateEvent(&event); !error.ok()) return error;
    chunks_.push_back(event);
    marked_.push_back(false);
  }
  marked_[chunk] = true;
  return device_->Record(chunks_[chunk], stream_);
}

bool CopyStream::IsMarked(uint64_t chunk) const { return chunk < marked_.size() && marked_[chunk]; }

DeviceError CopyStream::AwaitChunk(uint64_t chunk) { return device_->Synchronize(chunks_[chunk]); }

DeviceError CopyStream::QueryChunk(uint64_t chunk) const { return device_->Query(chunks_[chunk]); }

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
