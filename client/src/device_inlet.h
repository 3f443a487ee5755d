// Host bytes on their way into a GPU: two blocks of pinned memory, one filled while the other is copied.
#ifndef CKPTD_CLIENT_SRC_DEVICE_INLET_H_
#define CKPTD_CLIENT_SRC_DEVICE_INLET_H_

#include <array>
#include <cstdint>
#include <memory>

#include "client/src/lane.h"

namespace ckptd {

// One thread at a time; several may share a lane.
class DeviceInlet {
 public:
  explicit DeviceInlet(std::shared_ptr<Lane> lane) : lane_(std::move(lane)) {}
  DeviceInlet(const DeviceInlet&) = delete;
  DeviceInlet& operator=(const DeviceInlet&) = delete;
  ~DeviceInlet();

  [[nodiscard]] const std::shared_ptr<Lane>& lane() const { return lane_; }

  // Room for at most *bytes, which becomes how many there are. Waits until an earlier copy has left it. With a
  // ContextScope, like Send.
  DeviceError Room(uint64_t* bytes, char** out);

  // Enqueues the copy of what was written to the last Room.
  DeviceError Send(DeviceAddress to, uint64_t bytes);

 private:
  static constexpr uint64_t kBlock = 4 << 20;

  struct Block {
    char* memory = nullptr;
    DeviceEvent left;  // its copies are done
    bool used = false;
  };

  DeviceError Turn();

  std::shared_ptr<Lane> lane_;
  std::array<Block, 2> blocks_;
  size_t current_ = 0;
  uint64_t at_ = kBlock;  // in the current block; full at first
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_DEVICE_INLET_H_
