// The cases: each builds what it needs, measures ours against its limit, and takes everything away again.
#ifndef CKPTD_TOOLS_BENCH_CASES_H_
#define CKPTD_TOOLS_BENCH_CASES_H_

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/options.h"
#include "tools/bench/report.h"

namespace ckptd::bench {

using Lines = std::vector<Line>;

struct Case {
  const char* name;
  const char* what;  // one line for --help: ours, and the limit
  absl::StatusOr<Lines> (*run)(const Options& options);
  bool needs_gpu = false;
};

[[nodiscard]] std::span<const Case> Cases();

// case_copy.cc
[[nodiscard]] absl::StatusOr<Line> CopyCrc(const Options& options);

// case_save.cc
[[nodiscard]] absl::StatusOr<Line> SaveBlocked(const Options& options);
[[nodiscard]] absl::StatusOr<Line> SaveCaptured(const Options& options);
[[nodiscard]] absl::StatusOr<Line> SaveCapturedStays(const Options& options);
[[nodiscard]] absl::StatusOr<Line> SaveCapturedAlone(const Options& options);
[[nodiscard]] absl::StatusOr<Line> FlushDurable(const Options& options);

// case_restore.cc
[[nodiscard]] absl::StatusOr<Line> RestoreRegion(const Options& options);
[[nodiscard]] absl::StatusOr<Line> RestoreMap(const Options& options);
[[nodiscard]] absl::StatusOr<Line> RestoreStorage(const Options& options);

// case_agent.cc
[[nodiscard]] absl::StatusOr<Line> AgentStart(const Options& options);
[[nodiscard]] absl::StatusOr<Line> Adopt(const Options& options);
[[nodiscard]] absl::StatusOr<Line> AgentRest(const Options& options);
[[nodiscard]] absl::StatusOr<Line> AgentMemory(const Options& options);

// case_control.cc
[[nodiscard]] absl::StatusOr<Line> Commit(const Options& options);
[[nodiscard]] absl::StatusOr<Lines> RegisterLayout(const Options& options);

// case_status.cc: only with CKPTD_GRPC
[[nodiscard]] absl::StatusOr<Line> ControlStatus(const Options& options);

// case_copies.cc: only with CKPTD_GRPC
[[nodiscard]] absl::StatusOr<Lines> Copies(const Options& options);

// case_protect.cc: only with CKPTD_GRPC
[[nodiscard]] absl::StatusOr<Lines> SaveProtected(const Options& options);
[[nodiscard]] absl::StatusOr<Lines> SaveCapturedCopies(const Options& options);

// case_recover.cc: only with CKPTD_GRPC
[[nodiscard]] absl::StatusOr<Lines> RestoreReplica(const Options& options);
[[nodiscard]] absl::StatusOr<Lines> RestoreParity(const Options& options);

// case_erasure.cc
[[nodiscard]] absl::StatusOr<Lines> ErasureEncode(const Options& options);
[[nodiscard]] absl::StatusOr<Lines> ErasureRebuild(const Options& options);

// case_protocol.cc
[[nodiscard]] absl::StatusOr<Lines> Protocol(const Options& options);

// case_coordinator.cc
[[nodiscard]] absl::StatusOr<Lines> Coordinator(const Options& options);

// case_gpu.cc
[[nodiscard]] absl::StatusOr<Lines> GpuPush(const Options& options);
[[nodiscard]] absl::StatusOr<Lines> GpuPull(const Options& options);
[[nodiscard]] absl::StatusOr<Lines> GpuBlocked(const Options& options);
[[nodiscard]] absl::StatusOr<Lines> GpuRestore(const Options& options);

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_CASES_H_
