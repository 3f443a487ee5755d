// The state that a trainer left when it died: what of it counts, and its capture. See proto/local/rescue.h.
#ifndef CKPTD_DAEMON_COPIER_RESCUE_H_
#define CKPTD_DAEMON_COPIER_RESCUE_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/core/wire/mapping.h"
#include "daemon/copier/memory.h"
#include "daemon/copier/outcome.h"
#include "daemon/copier/pull.h"
#include "proto/local/rescue.h"

namespace ckptd {

struct LastStep {
  uint64_t serial = 0;
  uint64_t step = 0;
  uint64_t attempt = 0;
  uint32_t area = 0;

  friend bool operator==(const LastStep&, const LastStep&) = default;
};

// None: an update was under way, or what was published of the step that the GPU has come to is gone. Reads each word
// once; whose page it is may have written anything.
[[nodiscard]] std::optional<LastStep> FindLastStep(const RescuePage& page);

// The slot that such a step may be captured into.
struct LentSlot {
  uint32_t slot = 0;
  uint64_t epoch = 0;
};
[[nodiscard]] std::optional<LentSlot> FindLentSlot(const SlotSet& slots, const LastStep& last);

// What a trainer left to be captured.
class Estate {
 public:
  // `fds`: as in WATCH, but for the pidfd.
  static Outcome Open(const CopierWatch& watch, uint64_t slot_bytes, std::vector<UniqueFd> fds,
                      std::unique_ptr<Estate>* out);

  [[nodiscard]] const RescuePage& page() const { return *reinterpret_cast<const RescuePage*>(page_.data()); }
  [[nodiscard]] std::chrono::nanoseconds hold() const { return std::chrono::nanoseconds(hold_ns_); }

  // Everything of the slot that no piece covers. 0 or an errno.
  [[nodiscard]] int FillHostBytes(uint32_t area, std::span<const CopierPiece> pieces, uint64_t slot_bytes,
                                  char* slot) const;

 private:
  SharedMapping page_;
  std::array<UniqueFd, kRescueAreas> areas_;
  uint64_t hold_ns_ = 0;
};

// Behind the trainer's death. `serial`: larger than that of every COPY. True: the step is complete in its slot.
bool CaptureEstate(const Estate& estate, const PullParts& parts, uint64_t serial);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_RESCUE_H_
