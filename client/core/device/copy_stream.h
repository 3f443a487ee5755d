// A stream that copies device memory out, and the marks by which others learn how far it has come: one behind each
// stretch of a slot, one behind its last copy.
//
// Threads: one at a time. Only the end may be waited for by others, once it is marked.
#ifndef CKPTD_CLIENT_CORE_DEVICE_COPY_STREAM_H_
#define CKPTD_CLIENT_CORE_DEVICE_COPY_STREAM_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/device/device.h"

namespace ckptd {

// A copy and a mark keep the driver's locks for a while, and what trains wants them too: stretches of 16 MiB, of a
// small slot a 64th, of large chunks one. Chunks are powers of two, and so are stretches.
[[nodiscard]] constexpr uint64_t StretchBytes(uint64_t slot_bytes, uint64_t chunk_bytes) {
  constexpr uint64_t kMost = 16 << 20;
  constexpr uint64_t kCount = 64;
  return std::max(chunk_bytes, std::min(kMost, std::bit_floor(slot_bytes / kCount)));
}

class CopyStream {
 public:
  explicit CopyStream(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;
  ~CopyStream();

  [[nodiscard]] const Device& device() const { return *device_; }
  [[nodiscard]] const std::shared_ptr<Device>& shared_device() const { return device_; }
  [[nodiscard]] int ordinal() const { return device_->ordinal(); }
  [[nodiscard]] DeviceStream stream() const { return stream_; }

  // Every call below needs a ContextScope.

  DeviceError Open();

  // Into a slot, at `offset`. In pieces that end at multiples of 64 MiB of the slot: others' copies get a turn between
  // them, and none crosses from one pinned range into the next (pinned_memory.h), which the driver refuses.
  DeviceError CopyOut(char* slot, uint64_t offset, DeviceAddress from, uint64_t bytes);

  // Behind its copies; at most one a stretch and capture.
  DeviceError Mark(uint64_t stretch);
  [[nodiscard]] bool IsMarked(uint64_t stretch) const;
  DeviceError Await(uint64_t stretch);
  DeviceError Query(uint64_t stretch) const;  // kNotReady: not yet. Of a marked one

  // Behind the last copy of a capture.
  DeviceError MarkEnd();
  DeviceError AwaitEnd();
  DeviceError QueryEnd() const;                         // kNotReady: not yet. After MarkEnd
  DeviceError HoldUntilEnd(DeviceStream stream) const;  // any thread, once the copies are known to be submitted

  void Forget();  // marks of the capture before

 private:
  std::shared_ptr<Device> device_;
  DeviceStream stream_;
  DeviceEvent end_;
  bool end_marked_ = false;
  std::vector<DeviceEvent> stretches_;
  std::vector<bool> marked_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_DEVICE_COPY_STREAM_H_
