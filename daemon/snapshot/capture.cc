// From a grant to a sealed or given-up fill.
#include <algorithm>

#include "daemon/snapshot/impl.h"

namespace ckptd::snapshot {

void Machine::Impl::On(const BellRead& event) {
  for (const BellWord& word : event.words) {
    Slot* slot = Find(word.slot);
    if (slot != nullptr && slot->owner.process == event.process && slot->epoch == word.epoch) TakeWord(*slot, word);
  }
  if (event.process != process_) return;
  if (closed_) TakeBackUnused(event);
  if (event.wanted_attempt == seen_ && event.wanted > flush_wanted_) {
    flush_wanted_ = event.wanted;
    report_dirty_ = true;
  }
  if (event.pos_attempt == pos_attempt_ && event.pos <= pos_) return;
  pos_attempt_ = event.pos_attempt;
  pos_ = event.pos;
  report_dirty_ = true;
}

void Machine::Impl::TakeWord(Slot& slot, const BellWord& word) {
  if (word.ack >= slot.epoch) slot.writer_gone = true;
  if (slot.state == SlotStateCode::kRetired) {
    if (slot.writer_gone && !slot.replacing) Move(slot, Trigger::kWriterGone);
    return;
  }
  if (slot.state != SlotStateCode::kFilling) return;
  if (slot.step != word.step) report_dirty_ = true;
  slot.step = word.step;
  const bool early = !config_.rules.seal_only_complete && word.state == CaptureState::kOpen && word.step != 0;
  if (word.state == CaptureState::kComplete || early) return Complete(slot, word);
  if (word.state == CaptureState::kOpen) {
    if (MustGiveUp(slot)) slot.giving_up = false;  // our CAS did not happen: the bell was not at hand then
    return;
  }
  if (word.state != CaptureState::kAbandoned) return;
  if (!slot.abandoned) report_dirty_ = true;
  slot.abandoned = true;
  if (slot.writer_gone || !config_.rules.reuse_after_ack) Move(slot, Trigger::kWriterGone);
}

void Machine::Impl::Complete(Slot& slot, const BellWord& word) {
  const bool current = slot.owner.attempt == seen_ || !config_.rules.refuse_old_owner;
  const bool whole = word.crcs_valid || !config_.rules.seal_only_complete;
  const bool above = word.step >= floor_ || !config_.rules.drop_below_floor;
  if (!current || !above || !whole || word.step == 0) {
    if (!whole) last_error_ = "a completed capture had no valid checksum list; it was dropped";
    TellUnsealed(slot.owner, word.step, whole);
    return Move(slot, Trigger::kCompleteStale);
  }
  const Owner owner = slot.owner;
  Move(slot, Trigger::kCompleteLive);
  slot.snapshot = {owner.attempt, word.step};
  slot.adopted = slot.giving_up = false;
  slot.rescued = word.rescued;
  if (Runs(owner)) outcomes_.Sealed(word.step);
  const Source source = word.rescued ? Source::kRescued : Source::kRegion;
  Emit(SealSlot{slot.id, slot.epoch, slot.snapshot, owner.ticket, source, false});
}

// The step of a fill whose check failed may be a stray write: it is told only where it is no other step of this rank.
void Machine::Impl::TellUnsealed(const Owner& owner, StepId step, bool whole) {
  if (owner.attempt != seen_ || !Runs(owner)) return;
  if (whole) return outcomes_.Dropped(step, ErrorCode::BELOW_FLOOR);
  const bool other = step < floor_ || FindSealed({seen_, step}) != nullptr;
  if (!other) outcomes_.Dropped(step, ErrorCode::INTERNAL);
}

// Lent before the news of its end was here. As long as the process lives nobody would acknowledge it.
void Machine::Impl::TakeBackUnused(const BellRead& event) {
  for (const BellWord& word : event.words) {
    Slot* slot = Find(word.slot);
    const bool its = slot != nullptr && slot->owner.process == event.process && slot->epoch == word.epoch;
    if (its && slot->state == SlotStateCode::kFilling && word.state == CaptureState::kOpen && word.step == 0)
      Move(*slot, Trigger::kWriterGone);
  }
}

bool Machine::Impl::MustGiveUp(const Slot& slot) const {
  const bool other_layout = slot.owner.process == process_ && layout_ != 0 && slot.id.layout != layout_;
  const bool unused = slot.step == 0 && GivesRoom(slot.id.layout);
  return slot.adopted || slot.owner.attempt < seen_ || other_layout || unused;
}

void Machine::Impl::GiveUpStaleFills() {
  for (Slot& slot : slots_) {
    if (slot.state != SlotStateCode::kFilling || slot.giving_up || slot.abandoned || !MustGiveUp(slot)) continue;
    Move(slot, Trigger::kGiveUp);
    slot.giving_up = true;
    Emit(AbandonWord{slot.id, slot.epoch, slot.owner.process});
  }
}

bool Machine::Impl::MayLend() const {
  if (draining_ || closed_ || phase_ != v1::State::RUN || running_ == 0 || running_ != seen_ || layout_ == 0)
    return false;
  if (GivesRoom(layout_)) return false;
  const v1::RankClaim* claim = DecidedClaim();
  if (claim == nullptr || (claim->ticket() != ticket_ && config_.rules.only_decided_tickets)) return false;
  for (const Slot& slot : slots_) {
    if (slot.state == SlotStateCode::kFilling && slot.owner.attempt == seen_ && !slot.abandoned) return false;
  }
  return true;
}

void Machine::Impl::Lend() {
  if (!MayLend()) return;
  Slot* slot = FindFree(layout_);
  if (slot == nullptr) slot = MakeRoom(layout_);
  if (slot == nullptr) return;
  slot->epoch = ++last_epoch_;
  slot->owner = {seen_, ticket_, process_};
  slot->writer_gone = false;
  Move(*slot, Trigger::kLend);
  Emit(OpenGrant{slot->id, slot->epoch, floor_, slot->owner});
}

// What the agent before had lent a live writer answers for as soon as it hears of this one, and then its slot is free
// again: a fresh file would be memory for one slot more, at every restart. One that is given up under way is not waited
// for: that would cost the next saves. Nor is whoever lost the rank to another process: it may be stopped.
bool Machine::Impl::AwaitsAck(Slot& slot) {
  if (!slot.adopted || slot.ack_late || slot.owner.process != process_) return false;
  if (!slot.ack_awaited) Emit(RetryAt{/*soon=*/true});
  slot.ack_awaited = true;
  return true;
}

// No slot is free. A quarantined one is given up; one whose writer does not answer and may still wake, or that only a
// reader holds, gets a fresh file. Returns a slot that is free now.
Slot* Machine::Impl::MakeRoom(uint32_t layout) {
  for (Slot& slot : slots_) {
    if (slot.id.layout != layout || slot.state != SlotStateCode::kQuarantined || Pinned(slot)) continue;
    Move(slot, Trigger::kDead);
    return &slot;
  }
  for (const Slot& slot : slots_) {
    if (slot.id.layout == layout && slot.replacing) return nullptr;
  }
  for (Slot& slot : slots_) {
    if (replace_blocked_ || slot.dropped || slot.id.layout != layout) continue;
    const bool unknown = slot.state == SlotStateCode::kFilling && (slot.abandoned || slot.owner.attempt < seen_);
    const bool damaged = slot.state == SlotStateCode::kQuarantined;
    const bool needless = damaged || (slot.state == SlotStateCode::kSealed && Doomed(slot));
    const bool read = needless && !slot.flushing && slot.read_pins > 0;
    if (unknown && AwaitsAck(slot)) continue;
    if (unknown) Move(slot, Trigger::kWriterUnknown);
    if (!unknown && !read && slot.state != SlotStateCode::kRetired) continue;
    slot.replacing = report_dirty_ = true;
    Emit(ReplaceFile{slot.id});
    break;
  }
  return nullptr;
}

void Machine::Impl::On(const FileReplaced& event) {
  Slot* slot = Find(event.slot);
  if (slot == nullptr || !slot->replacing) return;
  slot->replacing = false;
  report_dirty_ = true;
  if (event.status.ok()) return Move(*slot, Trigger::kFreshFile);
  last_error_ = std::string(event.status.message());
  if (slot->state == SlotStateCode::kRetired && slot->writer_gone) return Move(*slot, Trigger::kWriterGone);
  replace_blocked_ = true;
  Emit(RetryAt{});
}

void Machine::Impl::PublishFloor(StepId before) {
  if (floor_ == before) return;
  for (const Slot& slot : slots_) {
    const bool lent = slot.state == SlotStateCode::kFilling && slot.owner.attempt == seen_ && slot.step == 0;
    if (lent) Emit(MoveFloor{slot.id, slot.epoch, floor_, slot.owner});
  }
}

}  // namespace ckptd::snapshot
