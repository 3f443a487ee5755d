#include "daemon/snapshot/machine.h"

#include <algorithm>
#include <utility>

#include "daemon/format/snapshot_ref.h"
#include "daemon/snapshot/impl.h"

namespace ckptd::snapshot {

Machine::Machine(Config config) : impl_(std::make_unique<Impl>(std::move(config))) {}
Machine::~Machine() = default;
Machine::Machine(Machine&&) noexcept = default;
Machine& Machine::operator=(Machine&&) noexcept = default;
void Machine::Step(const Event& event, Effects& effects) { impl_->Step(event, effects); }
View Machine::view() const { return impl_->view(); }
bool Machine::flushes_all() const { return impl_->flushes_all(); }

void Machine::Impl::Step(const Event& event, Effects& effects) {
  effects_ = &effects;
  std::visit([this](const auto& e) { On(e); }, event);
  Settle();
  effects_ = nullptr;
}

// The order matters only for speed: what frees slots comes before what needs them.
void Machine::Impl::Settle() {
  GiveUpStaleFills();
  FreeDead();
  Shrink();
  Load();
  Go();
  Lend();
  Flush();
  RetireLeftFills();
  RemoveOldLayouts();
  SendReport();
  SendNewsIfChanged();
}

void Machine::Impl::On(const Adopted& event) {
  seen_ = std::max(seen_, event.seen);
  for (const AdoptedSlot& found : event.slots) {
    Slot slot;
    slot.id = found.id;
    slot.state = found.state;
    slot.epoch = found.epoch;
    const bool written = found.state == SlotStateCode::kFilling || found.state == SlotStateCode::kRetired;
    if (written) slot.owner = found.owner;
    slot.snapshot = found.snapshot;
    slot.persisted = found.persisted;
    slot.rescued = found.rescued;
    slot.unchecked = found.unchecked;
    slot.adopted = found.state == SlotStateCode::kFilling;
    if (found.state == SlotStateCode::kLoading || found.state == SlotStateCode::kPreparing) {
      slot.state = SlotStateCode::kFree;
    }
    last_epoch_ = std::max(last_epoch_, found.epoch);
    slots_.push_back(slot);
  }
  report_dirty_ = true;
}

void Machine::Impl::On(const LayoutAdded& event) {
  if (Find({event.layout, 0}) != nullptr) return;
  for (uint32_t index = 0; index < event.count; ++index) slots_.emplace_back().id = {event.layout, index};
}

void Machine::Impl::On(const LayoutChosen& event) {
  if (event.process != process_) return;
  layout_ = event.layout;
  room_below_ = 0;
}

void Machine::Impl::On(const RoomNeeded& event) {
  room_below_ = 0;
  if (!event.on) return;
  for (const Slot& slot : slots_) room_below_ = std::max(room_below_, slot.id.layout + 1);
}

void Machine::Impl::BeginAttempt(AttemptId attempt) {
  if (decided_) {
    newest_before_ = watermark_;
    before_durable_ = durable_ == watermark_;
  }
  flush_before_ = false;
  seen_ = attempt;
  state_ = nullptr;
  decided_ = false;
  phase_ = v1::State::GATHER;
  parent_ = watermark_ = durable_ = {};
  protected_ = protecting_ = unprotected_ = {};
  protection_turns_ = 0;
  floor_ = 0;
  select_flush_ = false;
  flush_target_ = {};
  flush_wanted_ = 0;
  gone_ = false;
  leaving_ = 0;
  load_ = waiting_ ? v1::RankReport::WAIT : v1::RankReport::NONE;
  load_sent_ = go_sent_ = false;
  failure_code_ = ErrorCode::OK;
  failure_.clear();
  for (Slot& slot : slots_) slot.fetched = Source::kNone;
}

void Machine::Impl::On(const JobState& event) {
  const v1::State& state = *event.state;
  if (state.attempt() < seen_ && config_.rules.refuse_old_state) return;
  if (state.attempt() != seen_) BeginAttempt(state.attempt());
  report_dirty_ = true;
  state_ = event.state;
  if (state.phase() >= v1::State::LOAD && !decided_) {
    decided_ = true;
    parent_ = ToId(state.decision().parent());
    if (config_.rules.watermark_is_parent) watermark_ = parent_;
    floor_ = 1;
  }
  if (!decided_) return;
  phase_ = std::max(phase_, state.phase());
  const SnapshotId told = ToId(state.watermark());
  // The parent's attempt is lower than ours, so this order is the lineage's.
  if (config_.rules.watermark_is_parent || told.attempt == seen_) watermark_ = std::max(watermark_, told);
  durable_ = std::max(durable_, ToId(state.durable()));
  protected_ = std::max(protected_, ToId(state.protected_()));
  protecting_ = std::max(protecting_, ToId(state.protecting()));
  unprotected_ = std::max(unprotected_, ToId(state.unprotected()));
  protection_turns_ = std::max(protection_turns_, state.protection_turns());
  std::erase(on_storage_, durable_);
  select_flush_ = state.select_flush();
  flush_target_ = std::max(flush_target_, ToId(state.flush()));
  const StepId before = floor_;
  floor_ = std::max<StepId>(floor_, state.floor());
  PublishFloor(before);
}

void Machine::Impl::On(const Attached& event) {
  report_dirty_ = true;
  if (event.process != process_) {
    layout_ = 0;
    pos_attempt_ = pos_ = 0;
    news_ = {};
    outcomes_.Clear();
  }
  if (event.running != running_) outcomes_.Clear();
  const bool same_call = event.process == process_ && event.ticket == ticket_;
  process_ = event.process;
  ticket_ = event.ticket;
  running_ = event.running;
  closed_ = false;
  waiting_ = event.running == 0;
  load_sent_ = go_sent_ = false;  // the peer did not get our answer, or the connection was lost
  if (!waiting_) {
    load_ = running_ == seen_ ? v1::RankReport::RUN : v1::RankReport::NONE;
  } else if (!same_call || load_ == v1::RankReport::NONE || load_ == v1::RankReport::RUN) {
    load_ = v1::RankReport::WAIT;
  }
}

// The rank may be taken by another process at once. What it was filling waits for Reaped, and so does `gone`: a copier
// may complete a fill, which is sealed then.
void Machine::Impl::On(const Died& event) {
  if (event.process != process_) return;
  report_dirty_ = true;
  if (HasRank()) leaving_ = process_;
  process_ = ticket_ = running_ = 0;
  layout_ = 0;
  waiting_ = false;
  load_ = v1::RankReport::NONE;
}

void Machine::Impl::On(const Reaped& event) {
  On(Died{event.process});
  report_dirty_ = true;
  for (Slot& slot : slots_) {
    if (slot.owner.process != event.process) continue;
    slot.writer_gone = true;
    if (slot.state == SlotStateCode::kFilling) Move(slot, Trigger::kWriterGone);
    if (slot.state == SlotStateCode::kRetired && !slot.replacing) Move(slot, Trigger::kWriterGone);
  }
  if (leaving_ != event.process) return;
  gone_ = true;
  leaving_ = 0;
}

// Its ticket is the decided one: within this attempt the rank is its own for ever.
bool Machine::Impl::HasRank() const {
  return seen_ != 0 && (running_ == seen_ || (waiting_ && load_ == v1::RankReport::LOADED));
}

void Machine::Impl::On(const Withdrawn& event) {
  if (event.ticket != ticket_) return;
  report_dirty_ = true;
  if (!waiting_) {
    closed_ = closed_ || event.closed;
    return;
  }
  waiting_ = false;
  ticket_ = 0;
  load_ = v1::RankReport::NONE;
}

void Machine::Impl::On(const ReadPinned& event) {
  if (Slot* slot = Find(event.slot); slot != nullptr && slot->snapshot == event.snapshot) ++slot->read_pins;
}

void Machine::Impl::On(const ReadUnpinned& event) {
  Slot* slot = Find(event.slot);
  if (slot != nullptr && slot->snapshot == event.snapshot && slot->read_pins > 0) --slot->read_pins;
}

void Machine::Impl::On(const DamageFound& event) {
  Slot* slot = Find(event.slot);
  if (slot == nullptr || slot->state != SlotStateCode::kSealed || slot->snapshot != event.snapshot) return;
  if (slot->flushing && !slot->flush_cancelled) {
    slot->flush_cancelled = true;
    Emit(CancelFlush{slot->id, slot->snapshot});
  }
  Move(*slot, Trigger::kDamaged);
}

void Machine::Impl::On(const Checked& event) {
  Slot* slot = Find(event.slot);
  if (slot != nullptr && slot->snapshot == event.snapshot) slot->unchecked = false;
}

void Machine::Impl::On(const RetryTimer&) {
  flush_blocked_ = replace_blocked_ = false;
  for (Slot& slot : slots_) slot.ack_late = slot.ack_awaited;
}

void Machine::Impl::On(const FlushNewest&) {
  flush_before_ = !decided_;
  if (watermark_.attempt != seen_ || watermark_.step <= flush_wanted_) return;
  flush_wanted_ = watermark_.step;
  report_dirty_ = true;
}

void Machine::Impl::On(const Draining& event) {
  draining_ = event.on;
  report_dirty_ = true;
}

void Machine::Impl::Move(Slot& slot, Trigger trigger) {
  const Row& row = Next(slot.state, trigger);
  report_dirty_ = true;
  if (row.to == slot.state) return;
  if (slot.state == SlotStateCode::kSealed && row.to == SlotStateCode::kFree) NoteSuperseded(slot);
  slot.state = row.to;
  switch (row.to) {
    case SlotStateCode::kFree:
      Clear(slot);
      Emit(SetSlotState{slot.id, row.to});
      break;
    case SlotStateCode::kLoading:
    case SlotStateCode::kQuarantined:
    case SlotStateCode::kRetired:
      Emit(SetSlotState{slot.id, row.to});
      break;
    default:  // FILLING and SEALED are written by OpenGrant and SealSlot, which know more
      break;
  }
}

// Back to what a new slot is, but for its name and epoch.
void Machine::Impl::Clear(Slot& slot) {
  const SlotId id = slot.id;
  const Epoch epoch = slot.epoch;
  slot = Slot();
  slot.id = id;
  slot.epoch = epoch;
}

Slot* Machine::Impl::Find(const SlotId& id) {
  for (Slot& slot : slots_) {
    if (slot.id == id) return &slot;
  }
  return nullptr;
}

bool Machine::Impl::Same(const SnapshotId& a, const SnapshotId& b) const {
  return a.step == b.step && (a.attempt == b.attempt || !config_.rules.attempt_in_identity);
}

Slot* Machine::Impl::FindSealed(const SnapshotId& id) {
  for (Slot& slot : slots_) {
    if (slot.state == SlotStateCode::kSealed && !slot.replacing && Same(slot.snapshot, id)) return &slot;
  }
  return nullptr;
}

Slot* Machine::Impl::FindFree(uint32_t layout) {
  for (Slot& slot : slots_) {
    if (slot.state == SlotStateCode::kFree && slot.id.layout == layout) return &slot;
  }
  return nullptr;
}

}  // namespace ckptd::snapshot
