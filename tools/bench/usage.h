// What another process costs, as the kernel counts it.
#ifndef CKPTD_TOOLS_BENCH_USAGE_H_
#define CKPTD_TOOLS_BENCH_USAGE_H_

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace ckptd::bench {

// Seconds of CPU that it has had, user and system, all threads: to the nanosecond, not in ticks of 10 ms.
[[nodiscard]] absl::StatusOr<double> CpuSecondsOf(pid_t pid);

// How often its living threads went to sleep by themselves.
[[nodiscard]] absl::StatusOr<uint64_t> SleepsOf(pid_t pid);

// Resident memory of its own: anonymous pages and pages of files (RssAnon, RssFile), not of the region, which is shared
// memory (RssShmem). Bytes.
[[nodiscard]] absl::StatusOr<uint64_t> OwnMemoryOf(pid_t pid);

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_USAGE_H_
