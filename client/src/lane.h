// One GPU of a handle: a stream of its own that copies into slots, and the events that order it with the trainer's
// streams. It uses the context that the trainer has made already, and never makes one.
//
// Threads: one at a time, as the phase of the capture says: the trainer's inside ckpt_save, then the copy thread. Only
// `end` is waited for by others, and the threads of a restore share the stream.
#ifndef CKPTD_CLIENT_SRC_LANE_H_
#define CKPTD_CLIENT_SRC_LANE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/core/device/device.h"

namespace ckptd {

class Lane {
 public:
  // 0 or a negative code with its sentence.
  static int32_t Open(int ordinal, std::shared_ptr<Lane>* out);

  explicit Lane(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();

  [[nodiscard]] const Device& device() const { return *device_; }
  [[nodiscard]] const std::shared_ptr<Device>& shared_device() const { return device_; }
  [[nodiscard]] int ordinal() const { return device_->ordinal(); }
  [[nodiscard]] DeviceStream stream() const { return stream_; }

  // The trainer's: what was enqueued on it before ckpt_save is what the save captures.
  void SetCaller(DeviceStream stream) { caller_ = stream; }
  [[nodiscard]] DeviceStream caller() const { return caller_; }

  // Every call below needs a ContextScope.

  // Our stream goes on when the caller's has come this far.
  DeviceError FollowCaller();
  // The caller's stream goes on when ours has come this far.
  DeviceError HoldCaller();

  // In pieces of at most 64 MiB, on our stream: others' copies get a turn between them.
  DeviceError CopyOut(char* to, DeviceAddress from, uint64_t bytes);

  // Marks of chunks in our stream. At most one a chunk and capture.
  DeviceError MarkChunk(uint64_t chunk);
  [[nodiscard]] bool IsMarked(uint64_t chunk) const;
  DeviceError AwaitChunk(uint64_t chunk);

  // Behind the last copy of a capture.
  DeviceError MarkEnd();
  DeviceError AwaitEnd();
  DeviceError HoldUntilEnd(DeviceStream stream) const;  // any thread, once the capture says that copies are submitted

  void Forget();  // marks of the capture before

 private:
  DeviceError OpenEvents();

  std::shared_ptr<Device> device_;
  DeviceStream stream_;
  DeviceStream caller_;
  DeviceEvent begin_;
  DeviceEvent end_;
  bool end_marked_ = false;
  std::vector<DeviceEvent> chunks_;
  std::vector<bool> marked_;
};

// Device memory that is freed with its lane's context.
class DeviceBlock {
 public:
  static DeviceError Allocate(std::shared_ptr<Lane> lane, uint64_t bytes, std::unique_ptr<DeviceBlock>* out);
  DeviceBlock(std::shared_ptr<Lane> lane, DeviceAddress address) : lane_(std::move(lane)), address_(address) {}
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  ~DeviceBlock();

  [[nodiscard]] DeviceAddress address() const { return address_; }

 private:
  std::shared_ptr<Lane> lane_;
  DeviceAddress address_;
};

// "GPU 0: cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS (700)", as DEVICE. Returns the negative code.
int32_t DeviceFails(int ordinal, const DeviceError& error);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_LANE_H_
