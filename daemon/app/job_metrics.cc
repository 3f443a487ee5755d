#include "daemon/app/job_metrics.h"

#include <algorithm>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

double Seconds(Nanos duration) { return static_cast<double>(duration.count()) / 1e9; }

const char* TierOf(snapshot::Source source) { return source == snapshot::Source::kStorage ? "storage" : "region"; }

}  // namespace

void RankMetrics::Captured(const RecordHead& record, uint64_t bytes) {
  metrics_.saves.With({job_, "captured"}).Add();
  metrics_.captured_bytes.With({job_}).Add(static_cast<double>(bytes));
  metrics_.save_stall.With({job_}).Observe(Seconds(Nanos(record.blocked_ns)));
  // The trainer wrote both times: a negative duration would stay in the sum for ever.
  const uint64_t end = std::max(record.begin_unix_ns, record.captured_unix_ns);
  metrics_.capture_duration.With({job_}).Observe(Seconds(Nanos(end - record.begin_unix_ns)));
}

void RankMetrics::WentOn() {
  if (joined_ == Nanos(0)) return;  // told again
  metrics_.restores.With({job_, "ok"}).Add();
  if (source_ != snapshot::Source::kNone) {  // else it started afresh
    metrics_.restore_duration.With({job_, TierOf(source_)}).Observe(Seconds(clock_.Monotonic() - joined_));
  }
  joined_ = Nanos(0);
}

void RankMetrics::LoadFailed() { metrics_.restores.With({job_, "failed"}).Add(); }

void RankMetrics::Fetched(const absl::Status& status, uint64_t bytes) {
  if (status.ok()) metrics_.read_bytes.With({"storage"}).Add(static_cast<double>(bytes));
  if (CodeOf(status) == ErrorCode::CORRUPT) metrics_.verify_failures.With({"storage"}).Add();
}

void RankMetrics::DamagedInRegion() { metrics_.verify_failures.With({"region"}).Add(); }

void JobMetrics::StateIs(const v1::State& state) {
  Reached("region", state.watermark(), &captured_);
  Reached("storage", state.durable(), &durable_);
  if (captured_.none() || captured_.step < durable_.step) return;
  metrics_.tier_lag_steps.With({job_, "storage"}).Set(static_cast<double>(captured_.step - durable_.step));
}

void JobMetrics::Reached(const char* tier, const v1::SnapshotRef& newest, SnapshotId* last) {
  SnapshotId id{newest.attempt(), newest.step()};
  if (id.none() || id == *last) return;
  *last = id;
  metrics_.last_success_timestamp.With({job_, tier}).Set(Seconds(clock_.Wall()));
  metrics_.last_success_step.With({job_, tier}).Set(static_cast<double>(id.step));
}

}  // namespace ckptd
