// What works on this machine: plain facts for doctor, status and the choice of defaults. Each probe is harmless.
#ifndef CKPTD_DAEMON_OS_PROBE_H_
#define CKPTD_DAEMON_OS_PROBE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/files.h"

namespace ckptd {

// OK where a file can be opened with O_DIRECT and written from 4096-aligned memory; else the reason. Creates and
// removes the file `path`: a name by which the caller's next process finds it if this one is killed between.
[[nodiscard]] absl::Status ProbeDirectIo(Files& files, const std::string& path);

struct TmpfsFacts {
  bool is_tmpfs = false;
  uint64_t total = 0;
  uint64_t available = 0;
  std::string huge;       // mount option huge=, "never" where absent
  bool may_swap = false;  // the node has swap, where its pages can go
};
[[nodiscard]] absl::StatusOr<TmpfsFacts> ProbeTmpfs(const std::string& dir);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_PROBE_H_
