// A stream that copies device memory out, and the marks by which others learn how far it has come: one behind each
// chunk of a capture, one behind its last copy.
//
// Threads: one at a time. Only the end may be waited for by others, once it is marked.
#ifndef CKPTD_CLIENT_CORE_DEVICE_COPY_STREAM_H_
#define CKPTD_CLIENT_CORE_DEVICE_COPY_STREAM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/device/device.h"

namespace ckptd {

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

  // At most one a chunk and capture.
  DeviceError MarkChunk(uint64_t chunk);
  [[nodiscard]] bool IsMarked(uint64_t chunk) const;
  DeviceError AwaitChunk(uint64_t chunk);
  DeviceError QueryChunk(uint64_t chunk) const;  // kNotReady: not yet. Of a marked one

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
  std::vector<DeviceEvent> chunks_;
  std::vector<bool> marked_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_DEVICE_COPY_STREAM_H_
