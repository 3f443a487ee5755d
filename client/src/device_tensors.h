// What of a registration lives on GPUs: which lane each tensor belongs to, and how the eager ones are taken inside
// ckpt_save.
//
// Lazy tensors are copied out by the copy thread. Eager ones are *staged*: copied into device memory of ours on the
// caller's stream, so that training may change them at once; up to 64 MiB of them on a GPU. More, or when the GPU has
// no room, are *direct*: the caller's stream waits for their copy out.
#ifndef CKPTD_CLIENT_SRC_DEVICE_TENSORS_H_
#define CKPTD_CLIENT_SRC_DEVICE_TENSORS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "client/src/lane.h"

namespace ckptd {

struct Registration;

// The lanes of a handle. The trainer's thread only.
class Lanes {
 public:
  // 0 or a negative code with its sentence. Opens the lane where there is none yet.
  int32_t Find(int ordinal, std::shared_ptr<Lane>* out);

  // The lane of the device that `address` lies on.
  int32_t FindOf(const void* address, std::shared_ptr<Lane>* out);

  // Copies of eager tensors are to outlive this process where another one has them open.
  void ShareCopies() { share_copies_ = true; }
  [[nodiscard]] bool share_copies() const { return share_copies_; }

 private:
  std::vector<std::shared_ptr<Lane>> lanes_;
  bool share_copies_ = false;
};

struct DeviceTensors {
  static constexpr int16_t kHost = -1;

  struct Staged {
    uint32_t tensor = 0;
    DeviceAddress copy = 0;
  };

  std::vector<std::shared_ptr<Lane>> lanes;
  std::vector<int16_t> lane_of;               // by tensor: index in `lanes`, or kHost; empty: all are host memory
  std::vector<DeviceAddress> allocation_end;  // by tensor: of the allocation it lies in
  std::vector<Staged> staged;
  std::vector<uint32_t> direct;
  std::vector<std::unique_ptr<DeviceBlock>> blocks;

  [[nodiscard]] bool any() const { return !lanes.empty(); }
  // Any of the devices; null where there is none. Pinned for one, memory is pinned for all.
  [[nodiscard]] std::shared_ptr<Device> first_device() const {
    return any() ? lanes.front()->shared_device() : nullptr;
  }
  [[nodiscard]] int16_t lane(uint32_t tensor) const { return lane_of.empty() ? kHost : lane_of[tensor]; }
};

// Looks up every tensor with CKPT_DEVICE. `registration` has shape, data, flags and eager. 0 or a negative code with
// its sentence.
int32_t FindDeviceTensors(Lanes& lanes, Registration* registration);

// On the caller's stream of the only GPU, which may write to the copies. With its ContextScope.
DeviceError StageEagerTensors(const Registration& registration);

// On each caller's stream: takes the eager tensors, and lets our streams follow. `slot` is where the direct ones go.
// By the trainer's thread inside ckpt_save. 0 or a negative code with its sentence.
int32_t TakeEagerFromDevices(const Registration& registration, char* slot);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_DEVICE_TENSORS_H_
