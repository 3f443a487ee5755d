// What the agent does for post-mortem capture (proto/local/rescue.h): a trainer that died has its copiers for a while,
// JOINs of its job wait meanwhile, and what they saved counts only when the kernel told of no error of a GPU. Who is
// held how long decides daemon/session/rescues.h. Control thread only.
#ifndef CKPTD_DAEMON_APP_RESCUER_H_
#define CKPTD_DAEMON_APP_RESCUER_H_

#include <functional>
#include <list>
#include <set>
#include <string>

#include "daemon/base/clock.h"
#include "daemon/metrics/agent_metrics.h"
#include "daemon/os/kernel_log.h"
#include "daemon/os/loop.h"
#include "daemon/os/pidfd.h"
#include "daemon/session/requests.h"
#include "daemon/session/rescues.h"
#include "daemon/session/server.h"

namespace ckptd {

class Rescuer {
 public:
  struct Hooks {
    std::function<bool(const ProcessId&)> has_copiers;
    std::function<void(const ProcessId&)> read_bells;  // seals what is complete
    std::function<void(const ProcessId&)> kill_copiers;
    std::function<void(SessionId, const Peer&, const JoinRequest&)> join;
  };

  Rescuer(Loop& loop, const Clock& clock, AgentMetrics& metrics, Hooks hooks, const std::string& kernel_log);
  ~Rescuer();

  void Tell(const ProcessId& process, const RescueRequest& request);
  // It wants no rescue any more, and lives.
  void Forget(const ProcessId& process) { rescues_.Forget(process); }
  // It held ranks of `jobs`. True: its copiers go on, and so do its fills. Before anybody reads its bells.
  [[nodiscard]] bool ProcessDied(const ProcessId& process, const std::set<std::string>& jobs);
  void Sealed(const ProcessId& process, const SnapshotId& snapshot) { rescues_.Sealed(process, snapshot); }
  // After its bells were read for the last time.
  void Reaped(const ProcessId& process);

  // True: this JOIN waits, and comes through Hooks::join when it need not any more.
  [[nodiscard]] bool Delay(SessionId session, const Peer& peer, const JoinRequest& join);
  // A process that held a rank of it is being rescued.
  [[nodiscard]] bool Delays(const std::string& job) const { return rescues_.Delays(job); }
  // BYE, or the connection is gone.
  void DropJoins(SessionId session);

  [[nodiscard]] Rescues::Standing Of(const ProcessId& process) const { return rescues_.Of(process); }
  // What it said last; null: nothing.
  [[nodiscard]] const Rescues::Told* Find(const ProcessId& process) const { return rescues_.Find(process); }

 private:
  struct WaitingJoin {
    SessionId session;
    Peer peer;
    JoinRequest join;
    Nanos since;
  };

  void OnKernelLog();
  [[nodiscard]] bool Refused(const ProcessId& process, const Rescues::Told& told);
  void OnDeadline();
  void Done(const ProcessId& process, const Rescues::Rescue& rescue, const char* nothing);
  void ArmTimer();
  void LetJoinsGo();

  Loop& loop_;
  const Clock& clock_;
  AgentMetrics& metrics_;
  const Hooks hooks_;
  KernelLog kernel_log_;
  Rescues rescues_;
  std::list<WaitingJoin> waiting_;  // in their order
  Loop::TimerId timer_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_RESCUER_H_
