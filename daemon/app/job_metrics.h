// Feeds the metrics of one job from what its runners see. Control thread only.
#ifndef CKPTD_DAEMON_APP_JOB_METRICS_H_
#define CKPTD_DAEMON_APP_JOB_METRICS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/metrics/agent_metrics.h"
#include "daemon/snapshot/events.h"
#include "proto/ckptd/v1/job.pb.h"
#include "proto/local/region.h"

namespace ckptd {

class RankMetrics {
 public:
  RankMetrics(AgentMetrics& metrics, const Clock& clock, std::string job);

  void Captured(const RecordHead& record, uint64_t bytes);

  // One restore: the trainer asked; it was told where to load from; it went on, or said that its load failed.
  void Joined() { joined_ = clock_.Monotonic(); }
  void Loading(snapshot::Source source) { source_ = source; }
  void WentOn();
  void LoadFailed();

  // Bytes that came for a restore, or why they did not. `tier`: "storage", "peers" or "parity".
  void Fetched(const absl::Status& status, uint64_t bytes, const char* tier = "storage");
  void DamagedInRegion();
  void Superseded() { metrics_.flushes_superseded.With({job_}).Add(1); }

 private:
  AgentMetrics& metrics_;
  const Clock& clock_;
  const std::string job_;
  Counter& captures_;
  Counter& captured_bytes_;
  Histogram& save_stall_;
  Histogram& capture_duration_;
  Nanos joined_{0};  // 0 = nobody is in restore()
  snapshot::Source source_ = snapshot::Source::kNone;
};

// When a snapshot became complete in a tier, by what this node has of it, since 1970; 0 = it does not know.
using CompleteSince = std::function<int64_t(const SnapshotId& id)>;

class JobMetrics {
 public:
  JobMetrics(AgentMetrics& metrics, const Clock& clock, std::string job)
      : metrics_(metrics), clock_(clock), job_(std::move(job)), lag_(metrics.tier_lag_steps.With({job_, "storage"})) {}

  // A copy for another node: it is there, or why it is not.
  void Copied(const absl::Status& status, uint64_t bytes);
  // What the coordinator says of the whole job.
  void StateIs(const v1::State& state, const CompleteSince& captured, const CompleteSince& durable);

 private:
  struct Tier {
    const char* name;
    SnapshotId newest;
    Gauge* when = nullptr;  // made with the first success: zero would say that there was one in 1970
    Gauge* step = nullptr;
  };

  void Reached(const v1::SnapshotRef& newest, AttemptId attempt, const CompleteSince& since, Tier* tier);
  void SetTime(int64_t unix_ns, Tier* tier);

  AgentMetrics& metrics_;
  const Clock& clock_;
  const std::string job_;
  Gauge& lag_;
  bool heard_ = false;  // how far the tiers were: what is newer came since
  Tier captured_{"region", {}};
  Tier protected_{"peers", {}};
  Tier durable_{"storage", {}};
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_JOB_METRICS_H_
