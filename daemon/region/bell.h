// The agent's end of a bell (proto/local/bell.h): the memory in which one trainer process tells of its fills of one
// layout. Everything is copied out, then checked; the agent's own numbers bound every access. One thread.
#ifndef CKPTD_DAEMON_REGION_BELL_H_
#define CKPTD_DAEMON_REGION_BELL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/os/fd.h"
#include "daemon/os/mapping.h"
#include "daemon/region/superblock.h"
#include "proto/local/bell.h"

namespace ckptd::region {

// One slot as the trainer told of it, in private memory.
struct BellSlotView {
  Epoch epoch = 0;  // 0: the word makes no sense, and so nothing below does
  CaptureState state = CaptureState::kNone;
  Epoch ack = 0;
  StepId step = 0;  // 0: not begun
  AttemptId attempt = 0;
  uint64_t trace = 0;
  uint64_t begin_ns = 0;    // CLOCK_MONOTONIC
  uint64_t end_ns = 0;      // >= begin_ns
  uint64_t blocked_ns = 0;  // shown only
};

// `pos` is read before the words: a step that it covers and that has a fill is then never seen without that fill.
struct BellView {
  StepId pos = 0;
  AttemptId pos_attempt = 0;
  StepId wanted = 0;
  AttemptId wanted_attempt = 0;
  uint64_t dropped = 0;
  uint64_t drop_code = 0;  // as told; InfoOf() takes any number
  absl::InlinedVector<BellSlotView, 4> slots;
};

// Up to where its trainer has called save().
struct BellPosition {
  AttemptId attempt = 0;
  StepId step = 0;
  auto operator<=>(const BellPosition&) const = default;
};

enum class AbandonOutcome {
  kAbandoned,  // by this call or before; the writer's ack is still to come, or stands in the view
  kComplete,   // COMPLETE won: the fill may be sealed
  kNotOpen,    // the word is not of this epoch: the grant never reached the bell
};

class Bell {
 public:
  // New memory, sealed against change of size, all words 0.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Bell>> Create(const CtlHead& ctl);
  // A bell that a trainer hands back. REFUSED when it does not belong to `ctl`, INVALID_ARGUMENT when it is no sealed
  // memory of the right size.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Bell>> Attach(UniqueFd fd, const CtlHead& ctl);

  [[nodiscard]] BellView Read() const;
  [[nodiscard]] BellSlotView ReadSlot(uint32_t slot) const;
  [[nodiscard]] BellPosition ReadPosition() const;
  // The CRC list of a fill that ReadSlot() told: INVALID_ARGUMENT while a chunk has no entry of its epoch, and when the
  // trainer's check is not that of epoch, step, attempt and list.
  [[nodiscard]] absl::StatusOr<std::vector<uint32_t>> ReadChunks(uint32_t slot, const BellSlotView& view) const;
  // The first chunk at or after `from` that has no entry of `epoch`; chunk_count when there is none.
  [[nodiscard]] uint32_t DonePrefix(uint32_t slot, Epoch epoch, uint32_t from) const;
  // The checksums, as the trainer tells them, of the chunks from `from` up to that first one: added to `crcs`.
  void ReadDone(uint32_t slot, Epoch epoch, uint32_t from, std::vector<uint32_t>& crcs) const;

  // step = ack = 0, then word = (epoch, OPEN), whatever it was. Called by LayoutSet::OpenGrant.
  void Open(uint32_t slot, Epoch epoch);
  // (epoch, OPEN) -> (epoch, ABANDONED).
  [[nodiscard]] AbandonOutcome Abandon(uint32_t slot, Epoch epoch);

  [[nodiscard]] int fd() const { return fd_.get(); }         // for the trainer; owned by this
  [[nodiscard]] int hint_fd() const { return hint_.get(); }  // eventfd, for the trainer and for Loop::Watch
  [[nodiscard]] uint64_t bell_id() const { return bell_id_; }

 private:
  Bell(UniqueFd fd, UniqueFd hint, Mapping mapping, const CtlHead& ctl);
  BellHead& head() const;
  BellSlot& slot(uint32_t slot) const;
  std::atomic<uint64_t>* chunks(uint32_t slot) const;

  UniqueFd fd_;
  UniqueFd hint_;
  Mapping mapping_;
  uint64_t bell_id_;
  uint32_t slot_count_;
  uint32_t chunk_count_;
};

[[nodiscard]] uint64_t BellBytes(const CtlHead& ctl);

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_BELL_H_
