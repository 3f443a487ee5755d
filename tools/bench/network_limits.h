// What loopback can do without us, each by a program of its own that may be missing.
#ifndef CKPTD_TOOLS_BENCH_NETWORK_LIMITS_H_
#define CKPTD_TOOLS_BENCH_NETWORK_LIMITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd::bench {

struct NetworkLimit {
  const char* name;     // in the name of a case
  const char* what;     // for the report
  const char* program;  // as $PATH has it
  const char* package;
  absl::StatusOr<double> (*measure)(uint32_t streams);  // GB/s
};

inline constexpr char kIperf[] = "iperf3";
inline constexpr char kUcxPerf[] = "ucx_perftest";

// So many streams of one iperf3 for a second, as its receiver counts them.
[[nodiscard]] absl::StatusOr<double> MeasureIperf(uint32_t streams);
// Messages of 1 MiB by ucp, tagged, over TCP, either end sleeping while it has nothing to do, as an agent does. It
// knows one stream only.
[[nodiscard]] absl::StatusOr<double> MeasureUcxTcp(uint32_t streams);
// The same over what UCX chooses within one machine: shared memory.
[[nodiscard]] absl::StatusOr<double> MeasureUcxShared(uint32_t streams);

inline constexpr NetworkLimit kNetworkLimits[] = {
    {"iperf3", "iperf3, as many TCP streams over loopback as ranks", kIperf, "iperf3", MeasureIperf},
    {"ucx-tcp", "ucx_perftest tag_bw of 1 MiB, one stream, over TCP, loopback", kUcxPerf, "ucx-utils", MeasureUcxTcp},
    {"ucx-shm", "ucx_perftest tag_bw of 1 MiB, one stream, over shared memory", kUcxPerf, "ucx-utils",
     MeasureUcxShared},
};

// Out of what the programs print. INTERNAL when it is something else.
[[nodiscard]] absl::StatusOr<double> ParseIperf(absl::string_view json);
[[nodiscard]] absl::StatusOr<double> ParseUcxPerf(absl::string_view table);

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_NETWORK_LIMITS_H_
