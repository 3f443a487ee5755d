// What the parts of the agent share: made in agent.cc, outlives them all. Everything here is used on the control
// thread; the executors carry away what blocks.
#ifndef CKPTD_DAEMON_APP_SERVICES_H_
#define CKPTD_DAEMON_APP_SERVICES_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "daemon/base/clock.h"
#include "daemon/base/errors.h"
#include "daemon/base/executor.h"
#include "daemon/base/log.h"
#include "daemon/config/config.h"
#include "daemon/metrics/agent_metrics.h"
#include "daemon/os/loop.h"
#include "daemon/os/pidfd.h"
#include "daemon/persist/flusher.h"
#include "daemon/region/region.h"
#include "daemon/session/claims.h"
#include "daemon/session/server.h"
#include "daemon/storage/store.h"
#include "daemon/storage/store_calls.h"

namespace ckptd {

class CopierRunner;
class CopyKeeper;
class PeerLinks;
class Registrar;
class Rescuer;
class StorageWatch;

struct Services {
  const Config& config;
  const Clock& clock;
  Loop& loop;
  region::Region& region;
  Store& store;
  Store& restore_store;   // the same, for what restore() waits for
  StoreCalls& calls;      // under way in either
  Executor& record_work;  // small records, with restore_store only: never behind what nobody waits for
  Executor& fetch_work;   // reading snapshots back for a restore, with restore_store only
  Executor& chore_work;   // verifying, deleting, sweeping
  Executor& memory_work;  // populating slots, parsing headers, checking slots
  Flusher& flusher;
  Server& server;
  Claims& claims;
  StorageWatch& storage_watch;
  CopierRunner& copiers;
  Registrar& registrar;
  Rescuer& rescuer;
  PeerLinks& links;
  CopyKeeper& keeper;
  AgentMetrics& metrics;
  std::string agent_id;
  uint64_t incarnation = 0;
  std::function<absl::Status(const std::string& job)> forget_job;  // ends its runner and removes its region
  std::function<bool(const std::string& job)> in_use;              // a trainer, a flush or a reader
};

// Runs `work` on `executor` and gives its result to `done` on the control thread. `Result` is absl::Status or
// absl::StatusOr<T>; an executor that takes no more work gives STORAGE_HUNG.
template <typename Result, typename Work, typename Done>
void RunAsync(Loop& loop, Executor& executor, Work work, Done done) {
  struct Call {
    Work work;
    Done done;
    Result result;
  };
  const absl::Status not_yet(absl::StatusCode::kUnknown, "");
  auto call = std::make_shared<Call>(Call{std::move(work), std::move(done), not_yet});
  auto deliver = [&loop, call] {
    bool posted = loop.Post([call] { call->done(std::move(call->result)); });
    if (!posted) Log(kError, "app.post_lost");
  };
  bool taken = executor.Run([call, deliver] {
    call->result = call->work();
    deliver();
  });
  if (taken) return;
  call->result = Error(ErrorCode::STORAGE_HUNG, "too much work waits for the storage");
  deliver();
}

// The machines' name for a process: never reused, and the same after a restart of the agent. Pids have 22 bits.
[[nodiscard]] inline uint64_t PackProcess(const ProcessId& process) {
  return process.start_time << 22 | static_cast<uint64_t>(process.pid);
}
[[nodiscard]] inline ProcessId UnpackProcess(uint64_t packed) {
  return {static_cast<pid_t>(packed & ((1u << 22) - 1)), packed >> 22};
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_SERVICES_H_
