// Which snapshots stay: the freeing rule, flushing, and the end of old layouts.
#include <algorithm>
#include <limits>

#include "daemon/base/marks.h"
#include "daemon/snapshot/impl.h"

namespace ckptd::snapshot {
namespace {

constexpr size_t kMaxOnStorage = 16;

}  // namespace

bool Machine::Impl::Live(const Slot& slot) const {
  if (slot.snapshot.attempt != seen_) return false;
  if (!config_.rules.free_below_watermark) {  // the error: below this rank's own newest, not below the job's
    return std::none_of(slots_.begin(), slots_.end(), [&](const Slot& other) {
      return other.state == SlotStateCode::kSealed && other.snapshot > slot.snapshot;
    });
  }
  return slot.snapshot.step >= floor_ || !config_.rules.drop_below_floor;
}

// No attempt will ever need it: the freeing rule without the pins. Until the decision of `seen_` is known nothing is
// doomed; the coordinator may be choosing it.
bool Machine::Impl::Doomed(const Slot& slot) const {
  if (!decided_ && config_.rules.freeze_until_decision) return false;
  return slot.snapshot != watermark_ && !Live(slot) && !KeptForProtection(slot.snapshot);
}

// The loss of a node must leave each rank's part on some other one, and that other one may be this.
bool Machine::Impl::KeptForProtection(const SnapshotId& id) const {
  if (!config_.rules.keep_protected) return false;
  const bool is_protected = id == protected_ && IsInForce(protected_, unprotected_, protection_turns_);
  return is_protected || (id == protecting_ && id > unprotected_);
}

bool Machine::Impl::Pinned(const Slot& slot) const { return slot.flushing || slot.read_pins > 0 || slot.replacing; }

void Machine::Impl::FreeDead() {
  for (Slot& slot : slots_) {
    if (slot.state == SlotStateCode::kSealed && slot.snapshot == watermark_) slot.captured = true;
    const bool holds = slot.state == SlotStateCode::kSealed || slot.state == SlotStateCode::kQuarantined;
    if (holds && Doomed(slot) && !Pinned(slot)) Move(slot, Trigger::kDead);
  }
}

// The newest decision gives the rank to another agent. While that of `seen_` is not known, it may become ours again.
bool Machine::Impl::Left() const {
  if (!decided_ || process_ != 0 || state_->decision().ranks().empty()) return false;
  const v1::RankClaim* claim = DecidedClaim();
  return claim == nullptr || claim->agent() != config_.agent;
}

// Layouts below this one are saved into no more.
uint32_t Machine::Impl::OldBelow() const { return Left() ? std::numeric_limits<uint32_t>::max() : layout_; }

// What a fetch is about to use stays.
bool Machine::Impl::GivesRoom(uint32_t layout) const {
  const bool wanted = !wanted_.none() && layout == wanted_layout_;
  const uint32_t below = others_need_room_ ? std::max(room_below_, OldBelow()) : room_below_;
  return layout < below && !wanted;
}

// FREE says that the last writer is gone, and that no attempt needs what was in it: what is left are W, live steps, and
// what is being read, written or flushed.
void Machine::Impl::Shrink() {
  for (Slot& slot : slots_) {
    if (slot.state != SlotStateCode::kFree || !GivesRoom(slot.id.layout)) continue;
    Move(slot, Trigger::kRoomNeeded);
    slot.dropped = true;
    Emit(DropFile{slot.id});
  }
}

// While nothing is decided nobody chooses; then only what is asked for, and only what all ranks have.
bool Machine::Impl::ChosenForFlush(const Slot& slot) const {
  if (!decided_) return (draining_ || flush_before_) && slot.snapshot == newest_before_;
  return !select_flush_ || slot.snapshot == flush_target_;
}

// From the seal on, or what the coordinator has chosen; given up for what can no longer become captured, so that a slow
// storage does not hold its slot.
void Machine::Impl::Flush() {
  for (Slot& slot : slots_) {
    if (slot.state != SlotStateCode::kSealed || slot.persisted || slot.replacing || slot.unchecked) continue;
    const bool worth = slot.captured || !Doomed(slot);
    if (slot.flushing && !worth && !slot.flush_cancelled) {
      slot.flush_cancelled = true;
      Emit(CancelFlush{slot.id, slot.snapshot});
    }
    if (slot.flushing || !worth || !ChosenForFlush(slot) || flush_blocked_) continue;
    slot.flushing = true;
    slot.flush_cancelled = false;
    Emit(StartFlush{slot.id, slot.snapshot});
  }
}

void Machine::Impl::NoteSuperseded(const Slot& slot) {
  if (!slot.captured || slot.persisted) return;
  if (slot.snapshot.attempt == seen_ && running_ == seen_) outcomes_.Superseded(slot.snapshot.step);
  Emit(Superseded{slot.snapshot});
}

void Machine::Impl::On(const FlushEnded& event) {
  Slot* slot = Find(event.slot);
  if (slot == nullptr || !slot->flushing || slot->snapshot != event.snapshot) return;
  slot->flushing = slot->flush_cancelled = false;
  if (slot->state == SlotStateCode::kQuarantined) return;  // what was written may be the damage
  if (event.status.ok()) {
    slot->persisted = true;
    on_storage_.push_back(slot->snapshot);
    if (on_storage_.size() > kMaxOnStorage) on_storage_.pop_front();
    report_dirty_ = true;
    return Emit(SetPersisted{slot->id});
  }
  if (absl::IsCancelled(event.status)) return;
  last_error_ = std::string(event.status.message());
  flush_blocked_ = true;
  Emit(RetryAt{});
}

// A bell of a layout that the process left may be lost with the agent before: nobody acknowledges then, and the writer
// is unknown for as long as the process lives.
void Machine::Impl::RetireLeftFills() {
  for (Slot& slot : slots_) {
    const bool left = slot.state == SlotStateCode::kFilling && slot.id.layout < layout_;
    if (left && slot.adopted && slot.abandoned && !AwaitsAck(slot)) Move(slot, Trigger::kWriterUnknown);
  }
}

// An old layout goes when nothing of it is needed any more. Not during restore(): it may just have been added for the
// snapshot that is read from storage.
void Machine::Impl::RemoveOldLayouts() {
  const uint32_t below = OldBelow();
  if (below == 0 || waiting_ || !wanted_.none()) return;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const uint32_t layout = slots_[i].id.layout;
    if (layout >= below) continue;
    const auto needed = [&](const Slot& slot) {
      const bool idle = slot.state == SlotStateCode::kFree || slot.state == SlotStateCode::kRetired;
      return slot.id.layout == layout && (!idle || slot.replacing);
    };
    if (std::any_of(slots_.begin(), slots_.end(), needed)) continue;
    std::erase_if(slots_, [&](const Slot& slot) { return slot.id.layout == layout; });
    Emit(RemoveLayout{layout});
    i = static_cast<size_t>(-1);  // start again: indices moved
  }
}

}  // namespace ckptd::snapshot
