// What this rank tells the job, the trainer and the status page.
#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/base/marks.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/snapshot/impl.h"

namespace ckptd::snapshot {
namespace {

// But for the outcomes, which know themselves.
bool operator!=(const SendNews& a, const SendNews& b) {
  return a.process != b.process || a.attempt != b.attempt || a.captured != b.captured || a.durable != b.durable ||
         a.fenced_by != b.fenced_by || a.protected_step != b.protected_step;
}

}  // namespace

v1::RankReport::Load Machine::Impl::ReportedLoad() const {
  if (waiting_) return load_;
  return running_ != 0 && running_ == seen_ ? v1::RankReport::RUN : v1::RankReport::NONE;
}

void Machine::Impl::SendReport() {
  if (!report_dirty_) return;
  report_dirty_ = false;
  auto report = std::make_shared<v1::RankReport>();
  report->set_rank(config_.rank);
  report->set_seen(seen_);
  report->set_load(ReportedLoad());
  report->set_load_turns(load_turns_);
  if (report->load() != v1::RankReport::NONE) report->set_ticket(ticket_);
  if (load_ == v1::RankReport::FAILED) {
    report->set_failure_code(static_cast<uint32_t>(failure_code_));
    report->set_failure(failure_);
    report->set_failed_source(failed_source_);
  }
  for (const Slot& slot : slots_) {
    const bool sealed = slot.state == SlotStateCode::kSealed && !slot.replacing;
    if (sealed) SetRef(slot.snapshot, report->add_sealed());
    if (sealed && slot.persisted) SetRef(slot.snapshot, report->add_persisted());
    const bool replaced = slot.state == SlotStateCode::kSealed && slot.replacing;
    if (replaced || slot.state == SlotStateCode::kLoading) SetRef(slot.snapshot, report->add_unsettled());
    if (slot.state == SlotStateCode::kQuarantined) SetRef(slot.snapshot, report->add_quarantined());
    const bool fills = slot.state == SlotStateCode::kFilling && slot.owner.attempt == seen_ && !slot.abandoned;
    if (fills && slot.step != 0) report->set_fill(slot.step);
  }
  for (const SnapshotId& id : on_storage_) {
    if (FindSealed(id) == nullptr) SetRef(id, report->add_persisted());
  }
  if (pos_attempt_ == seen_) report->set_pos(pos_);
  report->set_gone(gone_ || (!config_.rules.gone_when_reaped && HasRank()));
  const bool drained = draining_ && watermark_.attempt == seen_;
  report->set_flush_wanted(std::max(flush_wanted_, drained ? watermark_.step : 0));
  Emit(ReportChanged{std::move(report)});
}

void Machine::Impl::SendNewsIfChanged() {
  if (process_ == 0 || running_ == 0) return;
  SendNews news = news_;  // a fenced process keeps what it was told of its own attempt
  if (news_.process != process_ || news_.attempt != running_) news = {process_, running_, 0, 0, 0, 0, {}};
  if (watermark_.attempt == running_) news.captured = watermark_.step;
  if (protected_.attempt == running_) news.protected_step = protected_.step;
  if (running_ == seen_) {
    news.durable = durable_.step;
    const StepId durable = durable_.attempt == running_ ? durable_.step : 0;
    outcomes_.Settle(news.captured, durable, floor_, news.protected_step);
  }
  news.fenced_by = running_ < seen_ ? seen_ : 0;
  const bool told = outcomes_.TakeNews();
  if (!told && !(news != news_)) return;
  news_ = news;
  news.outcomes = outcomes_.list();
  Emit(std::move(news));
}

bool Machine::Impl::Runs(const Owner& owner) const { return owner.process == process_ && owner.attempt == running_; }

View Machine::Impl::view() const {
  View view;
  view.seen = seen_;
  view.running = running_;
  view.ticket = ticket_;
  view.process = process_;
  view.load = ReportedLoad();
  view.reading = fetching_ || (!wanted_.none() && wanted_layout_ == 0);
  view.layout = layout_;
  view.left = Left();
  view.decided = decided_;
  view.watermark = watermark_;
  view.newest = Newest();
  view.newest_durable = decided_ ? durable_ == watermark_ : before_durable_;
  view.floor = floor_;
  view.pos = pos_attempt_ == seen_ ? pos_ : 0;
  view.durable = durable_;
  view.protected_ = protected_;
  view.protected_now = IsInForce(protected_, unprotected_, protection_turns_);
  view.fenced_by = running_ != 0 && running_ < seen_ ? seen_ : 0;
  view.last_error = last_error_;
  for (const Slot& slot : slots_) {
    SlotView& out = view.slots.emplace_back();
    out = {slot.id,       slot.state,     slot.epoch,    slot.snapshot,
           slot.captured, slot.persisted, slot.flushing, slot.read_pins};
    const bool newest = slot.state == SlotStateCode::kSealed && slot.snapshot == Newest();
    if (draining_ && (newest || slot.unchecked) && !slot.persisted) view.owes_flush = true;
    if (slot.state != SlotStateCode::kFilling) continue;
    out.snapshot = {slot.owner.attempt, slot.step};
    view.lent = view.lent || (slot.step == 0 && slot.owner.attempt == seen_ && !slot.giving_up && !slot.abandoned);
  }
  return view;
}

}  // namespace ckptd::snapshot
