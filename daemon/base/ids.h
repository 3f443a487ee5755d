// The names of things: jobs, ranks, attempts, snapshots. Values only, no I/O.
#ifndef CKPTD_DAEMON_BASE_IDS_H_
#define CKPTD_DAEMON_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd {

using Rank = uint32_t;
using AttemptId = uint64_t;  // 0 = none; the first attempt of a job is 1
using StepId = uint64_t;     // completed optimizer steps; 0 = nothing trained yet
using Ticket = uint64_t;     // random, new for each restore() call of a process; 0 = none
using Epoch = uint64_t;      // of a slot; 0 = never used

// A snapshot's identity within its job. {0, 0} means "none". Ordered by attempt, then step, for containers only:
// "newer" is decided by lineage, never by this order.
struct SnapshotId {
  AttemptId attempt = 0;
  StepId step = 0;
  auto operator<=>(const SnapshotId&) const = default;
  [[nodiscard]] bool none() const { return attempt == 0; }
};

// "1000.a3"
[[nodiscard]] std::string ToString(const SnapshotId& id);

// [A-Za-z0-9._-]{1,128}, not starting with '.' or '-'. Job names become directory names, so nothing else passes.
[[nodiscard]] absl::Status CheckJobName(absl::string_view job);

// "JOB" or "JOB@STEP".
struct JobStep {
  std::string job;
  std::optional<StepId> step;
};
[[nodiscard]] absl::StatusOr<JobStep> ParseJobStep(absl::string_view text);

// 64 random bits from the kernel, never 0.
[[nodiscard]] uint64_t RandomId();

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_IDS_H_
