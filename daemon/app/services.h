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
#include "daemon/job/report_numbers.h"
#include "daemon/metrics/agent_metrics.h"
#include "daemon/os/loop.h"
#include "daemon/os/pidfd.h"
#include "daemon/os/run_async.h"
#include "daemon/persist/flusher.h"
#include "daemon/region/region.h"
#include "daemon/session/claims.h"
#include "daemon/session/server.h"
#include "daemon/storage/store.h"
#include "daemon/storage/store_calls.h"

namespace ckptd::protect {
class CopyKeeper;
}

namespace ckptd {

class CopierRunner;
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
  Executor& beside_work;  // reading snapshots back beside others that bring them: what hangs here is not waited for
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
  protect::CopyKeeper& keeper;
  AgentMetrics& metrics;
  std::string agent_id;
  uint64_t incarnation = 0;
  std::shared_ptr<job::ReportNumbers> report_numbers;
  std::function<absl::Status(const std::string& job)> forget_job;  // ends its runner and removes its region
  std::function<bool(const std::string& job)> in_use;              // a trainer, a flush or a reader
};

// The machines' name for a process: never reused, and the same after a restart of the agent. Pids have 22 bits.
[[nodiscard]] inline uint64_t PackProcess(const ProcessId& process) {
  return process.start_time << 22 | static_cast<uint64_t>(process.pid);
}
[[nodiscard]] inline ProcessId UnpackProcess(uint64_t packed) {
  return {static_cast<pid_t>(packed & ((1u << 22) - 1)), packed >> 22};
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_SERVICES_H_
