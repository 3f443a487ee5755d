// Copiers as processes: starts them for trainers, ends them, and tells when a trainer is reaped with all of them. Which
// may run and what is waited for decides daemon/session/copiers.h.
//
// Control thread only, and the one that the agent lives on: a copier ends with the thread that started it. Nothing here
// waits for a process; a copier that sleeps in the kernel for ever keeps the slots of its trainer, and nothing else.
#ifndef CKPTD_DAEMON_APP_COPIER_RUNNER_H_
#define CKPTD_DAEMON_APP_COPIER_RUNNER_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/metrics/agent_metrics.h"
#include "daemon/os/fd.h"
#include "daemon/os/loop.h"
#include "daemon/os/pidfd.h"
#include "daemon/session/copiers.h"
#include "daemon/session/server.h"

namespace ckptd {

class CopierRunner {
 public:
  struct Options {
    std::string program;  // gpu.copier: a path, "off", or empty = beside this process' own executable
    uint64_t region_id = 0;
  };
  // No thread of the process and of its copiers runs any more.
  using OnReaped = std::function<void(const ProcessId&)>;

  CopierRunner(Loop& loop, const Clock& clock, Server& server, AgentMetrics& metrics, const Options& options,
               OnReaped on_reaped);
  ~CopierRunner();

  // Those that an earlier agent of this region left: killed, and their trainers' slots wait for their end. First.
  void EndOrphans();

  // Answers COPIER with COPIER_REPLY, once it is known whether the program could be run.
  void Ask(SessionId session, const Peer& peer, const GpuId& gpu);
  void Refuse(SessionId session, const GpuId& gpu, const absl::Status& why);
  // The process wants none any more.
  void Release(const ProcessId& process);
  // The process has ended: so do its copiers, when they are done (`held`), or killed at once. OnReaped follows, perhaps
  // at once.
  void ProcessDied(const ProcessId& process, bool held);
  // Those that an ended process still has.
  void KillHeld(const ProcessId& process);

  [[nodiscard]] bool HasAny(const ProcessId& process) const { return copiers_.HasAny(process); }
  // 0 = the process has none for this GPU.
  [[nodiscard]] pid_t PidOf(const ProcessId& process, const GpuId& gpu) const;
  [[nodiscard]] size_t running() const { return copiers_.running(); }
  // A sentence for each process that has ended and is not reaped.
  [[nodiscard]] std::vector<std::string> WaitingFor() const;

 private:
  using CopierId = Copiers::CopierId;
  struct Child {
    pid_t pid = 0;
    UniqueFd pidfd;
    bool killed = false;
    // Until it is known whether it runs:
    UniqueFd outcome;
    UniqueFd trainers_end;
    SessionId session = 0;
    GpuId gpu{};
  };

  absl::Status Start(SessionId session, const Peer& peer, const GpuId& gpu);
  absl::Status Watch(CopierId id, Child child);
  void OnOutcome(CopierId id);
  void OnEnded(CopierId id);
  void Kill(CopierId id);
  void TellReaped();
  void ReapLate();
  void AddOrphan(const ProcessId& process, UniqueFd pidfd);

  Loop& loop_;
  const Clock& clock_;
  Server& server_;
  AgentMetrics& metrics_;
  const absl::StatusOr<std::string> program_;
  const std::string token_;  // names the region in the command line
  const OnReaped on_reaped_;
  Copiers copiers_;
  CopierId last_ = 0;
  std::map<CopierId, Child> children_;
  std::vector<UniqueFd> unreaped_;  // ended, and held by a debugger
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_COPIER_RUNNER_H_
