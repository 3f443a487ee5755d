// Tells when processes end, by pidfd: a socket cannot, because forked children keep it open.
#ifndef CKPTD_DAEMON_SESSION_PROCESS_WATCH_H_
#define CKPTD_DAEMON_SESSION_PROCESS_WATCH_H_

#include <functional>
#include <map>

#include "absl/status/status.h"
#include "daemon/os/fd.h"
#include "daemon/os/loop.h"
#include "daemon/os/pidfd.h"

namespace ckptd {

// On the loop's thread.
class ProcessWatch {
 public:
  using OnDead = std::function<void(const ProcessId&)>;

  // `loop` outlives this. `on_dead` is called from the loop, once for each watched process, also for one that had
  // ended before it was watched; never from within Watch.
  ProcessWatch(Loop& loop, OnDead on_dead) : loop_(loop), on_dead_(std::move(on_dead)) {}
  ~ProcessWatch();

  // `pidfd` is of this process; without one it is opened here. Watching twice is harmless.
  [[nodiscard]] absl::Status Watch(const ProcessId& process, UniqueFd pidfd = UniqueFd());
  [[nodiscard]] size_t watched() const { return watched_.size(); }

 private:
  void Report(const ProcessId& process);

  Loop& loop_;
  const OnDead on_dead_;
  std::map<ProcessId, UniqueFd> watched_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_SESSION_PROCESS_WATCH_H_
