// What this process costs, for the process_* metrics. Any thread; a few system calls.
#ifndef CKPTD_DAEMON_OS_PROCESS_STATS_H_
#define CKPTD_DAEMON_OS_PROCESS_STATS_H_

#include <cstdint>

namespace ckptd {

struct ProcessStats {           // 0 = unknown
  double cpu_seconds = 0;       // user and system
  uint64_t resident_bytes = 0;  // with the pages of the region that are mapped
  uint64_t open_fds = 0;
  double start_unix_seconds = 0;  // the same in every call, also when the wall clock jumps: alerts watch for changes
};

[[nodiscard]] ProcessStats ReadProcessStats();

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_PROCESS_STATS_H_
