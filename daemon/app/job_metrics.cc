#include "daemon/app/job_metrics.h"

#include <algorithm>

#include "daemon/base/errors.h"

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

void JobMetrics::StateIs(const v1::State& state) {
  Reached(state.watermark(), &captured_);
  Reached(state.protected_(), &protected_);
  Reached(state.durable(), &durable_);
  if (captured_.newest.none() || captured_.newest.step < durable_.newest.step) return;
  lag_.Set(static_cast<double>(captured_.newest.step - durable_.newest.step));
}

void JobMetrics::Reached(const v1::SnapshotRef& newest, Tier* tier) {
  SnapshotId id{newest.attempt(), newest.step()};
  if (id.none() || id == tier->newest) return;
  tier->newest = id;
  if (tier->when == nullptr) {
    tier->when = &metrics_.last_success_timestamp.With({job_, tier->name});
    tier->step = &metrics_.last_success_step.With({job_, tier->name});
  }
  tier->when->Set(Seconds(clock_.Wall()));
  tier->step->Set(static_cast<double>(id.step));
}

}  // namespace ckptd
