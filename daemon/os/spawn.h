// Starts a program as another user without waiting for it: its end is told by its pidfd, whether it could be run at
// all by a pipe.
#ifndef CKPTD_DAEMON_OS_SPAWN_H_
#define CKPTD_DAEMON_OS_SPAWN_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd {

inline constexpr int kSpawnedSocket = 3;  // where the program finds its end

struct SpawnOptions {
  std::string program;                   // absolute path
  std::vector<std::string> arguments;    // from argv[0] on
  std::vector<std::string> environment;  // "NAME=value": all that it gets
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;
};

struct SpawnedProcess {
  pid_t pid = 0;
  UniqueFd socket;  // our end of a SOCK_SEQPACKET pair
  UniqueFd pidfd;
  UniqueFd outcome;  // for ReadSpawnOutcome once it is readable
};

// The program gets descriptor 3 and /dev/null, no capabilities, no core files, no new privileges, default signals, and
// SIGKILL when the calling *thread* ends. It runs with these ids; PERMISSION when they are not the caller's own and the
// caller lacks one of CAP_SETUID, CAP_SETGID and CAP_KILL. What the caller has on stderr it keeps only as the caller's
// own user: a stranger must not write into our log.
[[nodiscard]] absl::StatusOr<SpawnedProcess> Spawn(const SpawnOptions& options);

// OK: the program runs (or ran). Else why it could not be; the process has ended or is about to.
[[nodiscard]] absl::Status ReadSpawnOutcome(int outcome, const std::string& program);

// The file that this process runs.
[[nodiscard]] absl::StatusOr<std::string> OwnExecutable();

// How a child ended, which is then gone for good. nullopt while it runs. Does not wait.
struct ProcessEnd {
  int code = 0;    // of exit()
  int signal = 0;  // that ended it; 0 = exit()
};
[[nodiscard]] std::optional<ProcessEnd> ReapChild(int pidfd);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_SPAWN_H_
