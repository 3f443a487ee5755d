// One GPU of a handle: a stream of its own that copies into slots behind the trainer's streams. It uses the context
// that the trainer has made already, and never makes one.
//
// Threads: one at a time, as the phase of the capture says: the trainer's inside ckpt_save, then the copy thread. Only
// the end is waited for by others, and the threads of a restore share the stream.
#ifndef CKPTD_CLIENT_SRC_LANE_H_
#define CKPTD_CLIENT_SRC_LANE_H_

#include <cstdint>
#include <memory>

#include "client/core/device/allocation.h"
#include "client/core/device/copy_stream.h"

namespace ckptd {

class Lane : public CopyStream {
 public:
  // 0 or a negative code with its sentence.
  static int32_t Open(int ordinal, std::shared_ptr<Lane>* out);

  using CopyStream::CopyStream;
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  ~Lane();

  // The trainer's: what was enqueued on it before ckpt_save is what the save captures.
  void SetCaller(DeviceStream stream) { caller_ = stream; }
  [[nodiscard]] DeviceStream caller() const { return caller_; }

  // Our stream goes on when the caller's has come this far. With a ContextScope.
  DeviceError FollowCaller();
  // The caller's stream goes on when ours has come this far. With a ContextScope.
  DeviceError HoldCaller();

 private:
  DeviceStream caller_;
  DeviceEvent begin_;
};

// Device memory that is freed with its lane's context.
class DeviceBlock {
 public:
  // shareable: it stays while another process has it open, also when this one dies.
  static DeviceError Allocate(std::shared_ptr<Lane> lane, uint64_t bytes, bool shareable,
                              std::unique_ptr<DeviceBlock>* out);
  DeviceBlock(std::shared_ptr<Lane> lane, const ImportedAllocation& memory) : lane_(std::move(lane)), memory_(memory) {}
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;
  ~DeviceBlock();

  [[nodiscard]] DeviceAddress address() const { return memory_.base; }

 private:
  std::shared_ptr<Lane> lane_;
  ImportedAllocation memory_;  // kind kNone: of cuMemAlloc
};

// "GPU 0: cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS (700)", as DEVICE. Returns the negative code.
int32_t DeviceFails(int ordinal, const DeviceError& error);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_LANE_H_
