// restore() of the rank: LOAD from a slot, reading the parent from other agents or storage into one when no slot holds
// it, and GO.
#include <utility>

#include "daemon/snapshot/impl.h"

namespace ckptd::snapshot {
namespace {

v1::RankReport::Source Reported(Source source) {
  if (source == Source::kReplica || source == Source::kParity) return v1::RankReport::REPLICA;
  return source == Source::kStorage ? v1::RankReport::STORAGE : v1::RankReport::REGION;
}

}  // namespace

const v1::RankClaim* Machine::Impl::DecidedClaim() const {
  if (!decided_ || state_ == nullptr) return nullptr;
  for (const v1::RankClaim& claim : state_->decision().ranks()) {
    if (claim.rank() == config_.rank) return &claim;
  }
  return nullptr;
}

// Only the decision's ticket may load; another one waits for a higher attempt.
bool Machine::Impl::MayLoad() const {
  const v1::RankClaim* claim = DecidedClaim();
  return claim != nullptr && waiting_ && (claim->ticket() == ticket_ || !config_.rules.only_decided_tickets);
}

void Machine::Impl::Load() {
  if (Left() && !fetching_) wanted_ = {};  // by a process that is gone
  if (!MayLoad() || phase_ != v1::State::LOAD || load_ != v1::RankReport::WAIT) return;
  const bool here = parent_.none() || FindSealed(parent_) != nullptr;
  if (here && !fetching_) wanted_ = {};  // by an attempt before
  if (parent_.none()) return SendLoadNone();
  if (Slot* slot = FindSealed(parent_); slot != nullptr) return LoadFrom(*slot);
  FetchParent();
}

void Machine::Impl::SendLoadNone() {
  if (load_sent_) return;
  load_sent_ = true;
  load_source_ = Source::kNone;
  Emit(SendLoad{process_, ticket_, seen_, {}, {}, Source::kNone, state_});
}

void Machine::Impl::LoadFrom(Slot& slot) {
  if (load_sent_) return;
  load_sent_ = true;
  const Source memory = slot.rescued ? Source::kRescued : Source::kRegion;
  load_source_ = slot.fetched != Source::kNone ? slot.fetched : memory;
  Emit(SendLoad{process_, ticket_, seen_, slot.snapshot, slot.id, load_source_, state_});
}

// FindLayout, then a free slot of that layout, then Fetch. An answer for another snapshot than the present parent is
// ignored: an attempt ended in between.
void Machine::Impl::FetchParent() {
  if (fetching_) return;
  if (wanted_ != parent_) {
    wanted_ = parent_;
    wanted_layout_ = 0;
    asked_in_ = seen_;
    return Emit(FindLayout{parent_, SourcesOfParent()});
  }
  if (wanted_layout_ == 0) return;
  Slot* slot = FindFree(wanted_layout_);
  if (slot == nullptr) slot = MakeRoom(wanted_layout_);
  if (slot == nullptr) return;
  Move(*slot, Trigger::kFetch);
  slot->snapshot = parent_;
  slot->owner = {};
  fetching_ = true;
  asked_in_ = seen_;
  Emit(Fetch{slot->id, parent_, SourcesOfParent()});
}

Sources Machine::Impl::SourcesOfParent() const {
  if (state_ == nullptr) return {};
  for (const v1::RankSources& sources : state_->sources()) {
    if (sources.rank() != config_.rank) continue;
    Sources out{{sources.agents().begin(), sources.agents().end()}, nullptr};
    if (sources.has_parity()) out.parity = {state_, &sources.parity()};
    return out;
  }
  return {};
}

// What was asked in an attempt before says nothing of this one: who has the snapshot refuses the attempt that is over.
// Load() asks anew. Without memory here an older step would not fit either, and a decision for it would take this one
// off the lineage.
void Machine::Impl::FetchFailed(const absl::Status& status) {
  if (asked_in_ != seen_) return;
  const ErrorCode code = CodeOf(status);
  auto tried = SourcesOfParent().empty() ? v1::RankReport::STORAGE : v1::RankReport::REPLICA;
  if (code == ErrorCode::REGION_FULL || code == ErrorCode::QUOTA_EXCEEDED) tried = v1::RankReport::UNKNOWN;
  Fail(code, std::string(status.message()), tried);
}

void Machine::Impl::On(const LayoutFound& event) {
  if (event.snapshot != wanted_ || wanted_layout_ != 0) return;
  if (event.status.ok()) {
    wanted_layout_ = event.layout;
    return;
  }
  wanted_ = {};
  if (event.snapshot == parent_ && MayLoad()) FetchFailed(event.status);
}

void Machine::Impl::On(const Fetched& event) {
  Slot* slot = Find(event.slot);
  if (slot == nullptr || slot->state != SlotStateCode::kLoading || slot->snapshot != event.snapshot) return;
  fetching_ = false;
  wanted_ = {};
  if (!event.status.ok()) {
    Move(*slot, Trigger::kFetchFailed);
    if (event.snapshot == parent_ && MayLoad()) FetchFailed(event.status);
    return;
  }
  Move(*slot, Trigger::kFetched);
  slot->epoch = ++last_epoch_;
  slot->fetched = event.source;
  slot->persisted = event.source == Source::kStorage || event.persisted || event.snapshot == durable_;
  Emit(SealSlot{slot->id, slot->epoch, event.snapshot, ticket_, event.source, slot->persisted});
}

void Machine::Impl::On(const Loaded& event) {
  if (event.attempt != seen_ || event.ticket != ticket_ || !waiting_ || load_ != v1::RankReport::WAIT) return;
  load_ = v1::RankReport::LOADED;
  report_dirty_ = true;
}

void Machine::Impl::On(const LoadFailed& event) {
  if (event.attempt != seen_ || event.ticket != ticket_ || !waiting_ || load_ != v1::RankReport::WAIT) return;
  Slot* slot = FindSealed(parent_);
  if (event.code == ErrorCode::CORRUPT && slot != nullptr) Move(*slot, Trigger::kDamaged);
  Fail(event.code, event.reason, Reported(load_source_));
}

void Machine::Impl::On(const LoadGoesOn& event) {
  if (event.attempt != seen_ || event.ticket != ticket_ || !MayLoad() || load_ != v1::RankReport::WAIT) return;
  ++load_turns_;
  report_dirty_ = true;
}

void Machine::Impl::Fail(ErrorCode code, const std::string& reason, v1::RankReport::Source source) {
  load_ = v1::RankReport::FAILED;
  failure_code_ = code;
  failure_ = reason;
  failed_source_ = source;
  last_error_ = reason;
  report_dirty_ = true;
}

// RUN says that this ticket was LOADED, also when an agent that restarted has forgotten it.
void Machine::Impl::Go() {
  if (!MayLoad() || phase_ != v1::State::RUN || go_sent_) return;
  go_sent_ = true;
  load_ = v1::RankReport::RUN;
  running_ = seen_;
  outcomes_.Clear();
  waiting_ = false;
  report_dirty_ = true;
  Emit(SendGo{process_, ticket_, seen_, parent_.step, state_});
}

}  // namespace ckptd::snapshot
