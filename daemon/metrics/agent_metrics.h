// Every metric of the agent. Names follow Prometheus: base units, `_total` for counters; the label for a job is
// `training_job`, because `job` is Prometheus' own. No step numbers, paths or pids in labels.
//
// Values of labels: tier is "region", "peers" or "storage" (what is read back: "storage", "peers" or "parity"); source
// is "region", "rescued", "replica", "parity" or "storage"; outcome is "captured", "none" (nothing was sealed), "xid"
// (the kernel told of an error of a GPU) or "late" (its hold was over); result is "captured" or "dropped" (saves), "ok"
// or "failed" (restores, copies); path is "push" or "pull"; state is "up" or "down"; reason and kind are names in
// proto/local/errors.def.
#ifndef CKPTD_DAEMON_METRICS_AGENT_METRICS_H_
#define CKPTD_DAEMON_METRICS_AGENT_METRICS_H_

#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "daemon/metrics/metrics.h"

namespace ckptd {

[[nodiscard]] std::unique_ptr<Histogram> StallHistogram();     // 0.5 ms to 30 s
[[nodiscard]] std::unique_ptr<Histogram> DurationHistogram();  // 10 ms to 600 s

struct AgentMetrics {
  Family<Gauge> build_info{{"ckptd_build_info", "Version of the running agent; always 1.", {"version", "revision"}}};

  Family<Counter> saves{{"ckptd_saves_total", "Saves of one rank, by how they ended.", {"training_job", "result"}}};
  Family<Counter> saves_dropped{
      {"ckptd_saves_dropped_total", "Saves of one rank that were dropped, by reason.", {"training_job", "reason"}}};
  Family<Histogram> save_stall{
      {"ckptd_save_stall_seconds", "Time that training waited for one save.", {"training_job"}}, StallHistogram};
  Family<Histogram> capture_duration{
      {"ckptd_capture_duration_seconds", "From save() until one rank's snapshot was sealed.", {"training_job"}},
      DurationHistogram};
  Family<Counter> captured_bytes{{"ckptd_captured_bytes_total", "Bytes of sealed snapshots.", {"training_job"}}};

  Family<Histogram> persist_duration{
      {"ckptd_persist_duration_seconds", "From seal until one rank's files were synced.", {"training_job", "tier"}},
      DurationHistogram};
  Family<Counter> written_bytes{{"ckptd_written_bytes_total", "Bytes of images written.", {"tier"}}};
  Family<Counter> read_bytes{{"ckptd_read_bytes_total", "Bytes of images read back for restores.", {"tier"}}};
  Family<Counter> copies{{"ckptd_copies_total",
                          "Copies of one rank's snapshot to one other node, by how they ended.",
                          {"training_job", "result"}}};
  Family<Counter> copied_bytes{
      {"ckptd_copied_bytes_total", "Bytes of snapshots that other nodes hold and have verified.", {"training_job"}}};
  Family<Gauge> peers_memory_used{
      {"ckptd_peers_memory_used_bytes", "Memory of this node that holds copies for other nodes.", {}}};
  Family<Gauge> path_speed{{"ckptd_peer_path_bytes_per_second",
                            "Speed of the last copies to and from a node, by the way they took.",
                            {"peer", "way"}}};
  Family<Gauge> flushes_queued{{"ckptd_flushes_queued", "Snapshots that wait to be flushed or are being flushed.", {}}};

  Family<Counter> flushes_superseded{
      {"ckptd_flushes_superseded_total",
       "Captured snapshots of one rank that were never flushed: a newer one took their place.",
       {"training_job"}}};

  Family<Counter> restores{
      {"ckptd_restores_total", "Loads of one rank, by how they ended.", {"training_job", "result"}}};
  Family<Histogram> restore_duration{{"ckptd_restore_duration_seconds",
                                      "From the call of restore() until one rank went on.",
                                      {"training_job", "source"}},
                                     DurationHistogram};

  Family<Gauge> last_success_timestamp{
      {"ckptd_last_success_timestamp_seconds",
       "When a step of the job last became complete in this tier, since 1970; not there while unknown.",
       {"training_job", "tier"}}};
  Family<Gauge> last_success_step{
      {"ckptd_last_success_step", "The newest step that is complete in this tier.", {"training_job", "tier"}}};
  Family<Gauge> tier_lag_steps{{"ckptd_tier_lag_steps",
                                "Steps between the newest captured one and the newest in this tier.",
                                {"training_job", "tier"}}};

  Family<Gauge> region_size{{"ckptd_region_size_bytes", "Memory that snapshots may take on this node.", {}}};
  Family<Gauge> region_used{{"ckptd_region_used_bytes", "Memory reserved for snapshots.", {}}};
  Family<Gauge> members{{"ckptd_members", "Nodes that belong together, this one among them.", {}}};
  Family<Gauge> members_source_up{
      {"ckptd_members_source_up", "1 where the source of the members answers; 0: they are what it said last.", {}}};
  Family<Gauge> may_speak{{"ckptd_member_speaks", "1 where this node is a member and may write to others.", {}}};
  Family<Gauge> links{
      {"ckptd_links", "Nodes that this one has something to say to, by whether they are reached.", {"state"}}};
  Family<Gauge> certificate_left{
      {"ckptd_certificate_seconds", "Time until a certificate of this node ends, by its key in [peers].", {"key"}}};
  Family<Gauge> clients{{"ckptd_clients", "Connected trainers.", {}}};
  Family<Gauge> pinned{
      {"ckptd_pinned_bytes", "Memory of snapshots that trainers pinned for their GPUs.", {"training_job"}}};
  Family<Gauge> gpus{{"ckptd_gpus", "GPUs by how their tensors are captured.", {"training_job", "path"}}};
  Family<Gauge> copiers{{"ckptd_copiers", "Processes that copy from GPUs now.", {}}};
  Family<Counter> copier_starts{{"ckptd_copier_starts_total", "Such processes started.", {}}};
  Family<Counter> copier_deaths{
      {"ckptd_copier_deaths_total", "Such processes that ended while their trainer lived and wanted them.", {}}};
  Family<Counter> rescues{
      {"ckptd_rescues_total", "Trainers that died and were to be rescued, by what became of it.", {"outcome"}}};
  Family<Counter> verify_failures{
      {"ckptd_verify_failures_total", "Snapshots whose checksums were wrong when read back.", {"tier"}}};
  Family<Counter> proven_bytes{
      {"ckptd_proven_bytes_total", "Bytes of images read back from storage before older steps went.", {}}};
  Family<Counter> scrubbed_bytes{
      {"ckptd_scrubbed_bytes_total", "Bytes of snapshots that lay still and were read again.", {"tier"}}};
  Family<Counter> mended{
      {"ckptd_mended_total", "Times that the files of one rank of a committed step were put back from memory.", {}}};
  Family<Counter> errors{{"ckptd_errors_total", "Errors, by name.", {"kind"}}};
  Family<Counter> log_lines_dropped{{"ckptd_log_lines_dropped_total", "Log lines that stderr did not take.", {}}};

  Family<Counter> process_cpu{{"process_cpu_seconds_total", "User and system CPU time.", {}}};
  Family<Gauge> process_resident{{"process_resident_memory_bytes", "Resident memory.", {}}};
  Family<Gauge> process_fds{{"process_open_fds", "Open file descriptors.", {}}};
  Family<Gauge> process_start{{"process_start_time_seconds", "Start of the process, since 1970.", {}}};

  // Makes the series that every agent has. Those without labels are at zero from the start.
  AgentMetrics(absl::string_view version, absl::string_view revision);
  AgentMetrics(const AgentMetrics&) = delete;
  AgentMetrics& operator=(const AgentMetrics&) = delete;

  // Makes the job's known series at zero, so that rates and alerts work from its first save on. Again = no effect.
  void AddJob(absl::string_view job);

  // Takes its series away again. Nobody keeps a reference to one of them any more.
  void ForgetJob(absl::string_view job);

  // In order of declaration.
  template <typename Visitor>
  void ForEachFamily(const Visitor& visit) const {
    VisitFamilies(*this, visit);
  }

 private:
  template <typename Self, typename Visitor>
  static void VisitFamilies(Self& self, const Visitor& visit) {
    auto visit_all = [&visit](auto&... families) { (visit(families), ...); };
    visit_all(self.build_info, self.saves, self.saves_dropped, self.save_stall, self.capture_duration,
              self.captured_bytes, self.persist_duration, self.written_bytes, self.read_bytes, self.copies,
              self.copied_bytes, self.peers_memory_used, self.path_speed, self.flushes_queued, self.flushes_superseded,
              self.restores, self.restore_duration, self.last_success_timestamp, self.last_success_step,
              self.tier_lag_steps, self.region_size, self.region_used, self.members, self.members_source_up,
              self.may_speak, self.links, self.certificate_left, self.clients, self.pinned, self.gpus, self.copiers,
              self.copier_starts, self.copier_deaths, self.rescues, self.verify_failures, self.proven_bytes,
              self.scrubbed_bytes, self.mended, self.errors, self.log_lines_dropped, self.process_cpu,
              self.process_resident, self.process_fds, self.process_start);
  }
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_METRICS_AGENT_METRICS_H_
