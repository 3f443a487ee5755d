#include "daemon/metrics/agent_metrics.h"

#include <array>
#include <string>

namespace ckptd {

std::unique_ptr<Histogram> StallHistogram() {
  static constexpr std::array<double, 14> kBounds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
                                                     0.1,    0.2,   0.5,   1,     5,    10,   30};
  return std::make_unique<Histogram>(kBounds);
}

std::unique_ptr<Histogram> DurationHistogram() {
  static constexpr std::array<double, 15> kBounds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,  2.5,
                                                     5,    10,    30,   60,  120,  300, 600};
  return std::make_unique<Histogram>(kBounds);
}

AgentMetrics::AgentMetrics(absl::string_view version, absl::string_view revision) {
  build_info.With({std::string(version), std::string(revision)}).Set(1);
  for (Family<Gauge>* family : {&flushes_queued, &region_size, &region_used, &peers_memory_used, &clients, &copiers,
                                &process_resident, &process_fds, &process_start})
    (void)family->With({});
  for (Family<Counter>* family :
       {&proven_bytes, &mended, &log_lines_dropped, &copier_starts, &copier_deaths, &process_cpu})
    (void)family->With({});
  for (const char* tier : {"region", "storage"}) {
    (void)verify_failures.With({tier});
    (void)scrubbed_bytes.With({tier});
  }
  for (const char* outcome : {"captured", "none", "xid", "late"}) (void)rescues.With({outcome});
  for (Family<Counter>* family : {&written_bytes, &read_bytes}) (void)family->With({"storage"});
  for (const char* tier : {"peers", "parity"}) (void)read_bytes.With({tier});
}

// Gauges of the last success are left out: zero would say that there was one in 1970.
void AgentMetrics::AddJob(absl::string_view job) {
  std::string name(job);
  for (const char* result : {"captured", "dropped"}) (void)saves.With({name, result});
  for (const char* result : {"ok", "failed"}) (void)restores.With({name, result});
  for (const char* result : {"ok", "failed"}) (void)copies.With({name, result});
  for (const char* source : {"region", "replica", "storage"}) (void)restore_duration.With({name, source});
  for (Family<Histogram>* family : {&save_stall, &capture_duration}) (void)family->With({name});
  for (Family<Counter>* family : {&captured_bytes, &copied_bytes, &flushes_superseded}) (void)family->With({name});
  (void)persist_duration.With({name, "storage"});
  (void)tier_lag_steps.With({name, "storage"});
}

void AgentMetrics::ForgetJob(absl::string_view job) {
  VisitFamilies(*this, [job](auto& family) { family.Release("training_job", job); });
}

}  // namespace ckptd
