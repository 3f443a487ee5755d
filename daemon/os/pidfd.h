// Other processes: who they are and whether they live. A pid alone may name another process later; a pid with its start
// time, or a pidfd, never does.
#ifndef CKPTD_DAEMON_OS_PIDFD_H_
#define CKPTD_DAEMON_OS_PIDFD_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd {

struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // field 22 of /proc/<pid>/stat: clock ticks since boot
  auto operator<=>(const ProcessId&) const = default;
};

// NOT_FOUND when there is no such process.
[[nodiscard]] absl::StatusOr<uint64_t> ProcessStartTime(pid_t pid);

// A pidfd: readable (EPOLLIN) once the process has ended. Works in Loop::Watch.
[[nodiscard]] absl::StatusOr<UniqueFd> OpenPidFd(pid_t pid);

// The pidfd of exactly this process; NOT_FOUND when it has ended, also if its pid was given to another one.
[[nodiscard]] absl::StatusOr<UniqueFd> OpenProcess(const ProcessId& id);

// SIGKILL. OK also when it has ended.
[[nodiscard]] absl::Status KillProcess(int pidfd);

// True once the process of `pidfd` has ended (all its threads). Does not wait.
[[nodiscard]] bool HasExited(int pidfd);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_PIDFD_H_
