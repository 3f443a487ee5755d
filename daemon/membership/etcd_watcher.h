// Follows the members' keys in etcd on a thread of its own: list, watch, and again from where it ended when the watch
// breaks; a new list only where etcd has forgotten that place (compaction). What it knew stays when etcd does not
// answer.
#ifndef CKPTD_DAEMON_MEMBERSHIP_ETCD_WATCHER_H_
#define CKPTD_DAEMON_MEMBERSHIP_ETCD_WATCHER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/mutex.h"
#include "daemon/membership/etcd.h"
#include "daemon/membership/etcd_mirror.h"
#include "daemon/os/thread.h"

namespace ckptd::membership {

// All that is known at one moment: a later word makes an earlier one needless.
struct EtcdWord {
  absl::Status status;  // not OK: etcd cannot be asked, and nothing else is set
  std::vector<Member> members;
  std::optional<EtcdEntry> own;  // this node's key
  int64_t revision = 0;
};

class EtcdWatcher {
 public:
  // `etcd` outlives it. `tell` is called on its thread.
  EtcdWatcher(Etcd& etcd, std::string prefix, std::string own_name, std::function<void(EtcdWord)> tell);
  // Joins: cancel `etcd` before.
  ~EtcdWatcher();

 private:
  void Run() CKPTD_EXCLUDES(mutex_);
  // Until the watch ends. OK: go on at once.
  [[nodiscard]] absl::Status Turn();
  [[nodiscard]] absl::Status CatchUp();
  void TellAll();
  // False when it is to stop.
  [[nodiscard]] bool Pause() CKPTD_EXCLUDES(mutex_);

  Etcd& etcd_;
  const std::string prefix_;
  const std::string own_name_;
  const std::function<void(EtcdWord)> tell_;
  EtcdMirror mirror_;   // of the thread
  bool relist_ = true;  // of the thread
  Mutex mutex_;
  CondVar stopped_;
  bool stop_ CKPTD_GUARDED_BY(mutex_) = false;
  Thread thread_;  // the last member: it uses the others
};

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_ETCD_WATCHER_H_
