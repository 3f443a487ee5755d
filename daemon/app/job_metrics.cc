#include "daemon/app/job_metrics.h"

#include <algorithm>

#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"

namespace ckptd {
namespace {

const char* NameOf(snapshot::Source source) {
  if (source == snapshot::Source::kRescued) return "rescued";
  if (source == snapshot::Source::kReplica) return "replica";
  if (source == snapshot::Source::kParity) return "parity";
  return source == snapshot::Source::kStorage ? "storage" : "region";
}

}  // namespace

RankMetrics::RankMetrics(AgentMetrics& metrics, const Clock& clock, std::string job)
    : metrics_(metrics),
      clock_(clock),
      job_(std::move(job)),
      captures_(metrics.saves.With({job_, "captured"})),
      captured_bytes_(metrics.captured_bytes.With({job_})),
      save_stall_(metrics.save_stall.With({job_})),
      capture_duration_(metrics.capture_duration.With({job_})) {}

void RankMetrics::Captured(const RecordHead& record, uint64_t bytes) {
  captures_.Add();
  captured_bytes_.Add(static_cast<double>(bytes));
  save_stall_.Observe(Seconds(Nanos(record.blocked_ns)));
  // The trainer wrote both times: a negative duration would stay in the sum for ever.
  const uint64_t end = std::max(record.begin_unix_ns, record.captured_unix_ns);
  capture_duration_.Observe(Seconds(Nanos(end - record.begin_unix_ns)));
}

void RankMetrics::WentOn() {
  if (joined_ == Nanos(0)) return;  // told again
  metrics_.restores.With({job_, "ok"}).Add();
  if (source_ != snapshot::Source::kNone) {  // else it started afresh
    metrics_.restore_duration.With({job_, NameOf(source_)}).Observe(Seconds(clock_.Monotonic() - joined_));
  }
  joined_ = Nanos(0);
}

void RankMetrics::LoadFailed() { metrics_.restores.With({job_, "failed"}).Add(); }

void RankMetrics::Fetched(const absl::Status& status, uint64_t bytes, const char* tier) {
  if (status.ok()) metrics_.read_bytes.With({tier}).Add(static_cast<double>(bytes));
  if (CodeOf(status) == ErrorCode::CORRUPT) metrics_.verify_failures.With({tier}).Add();
}

void RankMetrics::DamagedInRegion() { metrics_.verify_failures.With({"region"}).Add(); }

void JobMetrics::Copied(const absl::Status& status, uint64_t bytes) {
  metrics_.copies.With({job_, status.ok() ? "ok" : "failed"}).Add();
  if (status.ok()) metrics_.copied_bytes.With({job_}).Add(static_cast<double>(bytes));
}

void JobMetrics::StateIs(const v1::State& state, const CompleteSince& captured, const CompleteSince& durable) {
  if (state.phase() == v1::State::GATHER) return;  // it does not say how far they are
  Reached(state.watermark(), state.attempt(), captured, &captured_);
  Reached(state.protected_(), state.attempt(), nullptr, &protected_);
  Reached(state.durable(), state.attempt(), heard_ ? nullptr : durable, &durable_);
  heard_ = true;
  if (captured_.newest.none() || captured_.newest.step < durable_.newest.step) return;
  lag_.Set(static_cast<double>(captured_.newest.step - durable_.newest.step));
}

// A success is what this attempt made: its parent, and what is older, was there when it began.
void JobMetrics::Reached(const v1::SnapshotRef& newest, AttemptId attempt, const CompleteSince& since, Tier* tier) {
  const SnapshotId id = ToId(newest);
  if (id.none() || id == tier->newest) return;
  // Within an attempt they only grow: a coordinator that starts anew does not know all yet.
  if (tier->newest.attempt == attempt && id < tier->newest) return;
  tier->newest = id;
  if (tier->step == nullptr) tier->step = &metrics_.last_success_step.With({job_, tier->name});
  tier->step->Set(static_cast<double>(id.step));
  if (id.attempt != attempt) return;
  const int64_t known = since == nullptr ? 0 : since(id);
  const int64_t now = clock_.Wall().count();
  // A trainer may have written what is known.
  if (known > 0) return SetTime(std::min(known, now), tier);
  if (heard_) SetTime(now, tier);
}

void JobMetrics::SetTime(int64_t unix_ns, Tier* tier) {
  if (tier->when == nullptr) tier->when = &metrics_.last_success_timestamp.With({job_, tier->name});
  tier->when->Set(Seconds(Nanos(unix_ns)));
}

}  // namespace ckptd
