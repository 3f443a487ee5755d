// Publishes what a copier needs to capture this process's state when it dies between two updates: see
// proto/local/rescue.h. One per registration, copier and set of slots.
//
// Threads: any; Publish only from the thread that calls ckpt_step and ckpt_save.
#ifndef CKPTD_CLIENT_SRC_RESCUE_H_
#define CKPTD_CLIENT_SRC_RESCUE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/core/wire/fds.h"
#include "client/src/layout.h"
#include "client/src/stream_page.h"
#include "proto/local/rescue.h"

namespace ckptd {

class Rescue {
 public:
  static constexpr uint64_t kMostHostBytes = 64 << 20;  // copied at every step

  // What a step leaves.
  struct Published {
    uint64_t step = 0;
    uint64_t attempt = 0;
    const void* extra = nullptr;
    uint64_t extra_bytes = 0;
    bool staged = false;  // the copies of eager tensors are of this step already
  };

  // Null: `why` this state cannot be rescued. Its tensors are on one GPU.
  static std::shared_ptr<Rescue> Make(std::shared_ptr<const Registration> registration,
                                      const std::vector<DeviceAllocation>& allocations, std::string* why);

  Rescue(std::shared_ptr<const Registration> registration, std::vector<DeviceAllocation> allocations)
      : registration_(std::move(registration)), allocations_(std::move(allocations)) {}
  Rescue(const Rescue&) = delete;
  Rescue& operator=(const Rescue&) = delete;
  ~Rescue() { Disarm(); }

  [[nodiscard]] const Registration* registration() const { return registration_.get(); }
  // For WATCH: the page, then the areas.
  [[nodiscard]] std::array<int, 1 + kRescueAreas> files() const;

  // What is enqueued on this stream from now on is an update, or what the CPU does where there is none.
  void Begin(const DeviceStream* stream);
  // Everything that is enqueued on the caller's stream makes the state of a step. False: the copier has other memory
  // than the tensors by now.
  [[nodiscard]] bool Publish(const Published& published);
  // Until the next Publish there is nothing to capture.
  void Disarm();
  [[nodiscard]] bool armed() const;

 private:
  [[nodiscard]] RescuePage& page() const { return *reinterpret_cast<RescuePage*>(page_.data()); }
  [[nodiscard]] const Lane& lane() const { return *registration_->devices.lanes.front(); }
  bool MakeAreas(std::string* why);
  void ListHostPieces();
  [[nodiscard]] bool Fill(int area, const Published& published);
  [[nodiscard]] DeviceError Enqueue(const Published& published, uint64_t serial);
  [[nodiscard]] std::atomic<uint64_t>* WordOf(DeviceStream stream);
  void Break();

  const std::shared_ptr<const Registration> registration_;
  const std::vector<DeviceAllocation> allocations_;  // that the copier has open
  StreamPage page_;
  std::array<UniqueFd, kRescueAreas> areas_;  // slot_bytes long, sparse
  std::vector<Piece> host_pieces_;            // tensors in host memory, eager ones too, and `extra_`
  std::vector<char> extra_;

  Mutex mutex_;
  uint64_t serial_ = 0;  // of the last Publish
  std::vector<void*> streams_;
  bool broken_ = false;  // for good
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_RESCUE_H_
