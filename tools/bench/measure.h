// Measuring ours and a limit in the same run, in turn: the machine's mood of the minute then hits both.
#ifndef CKPTD_TOOLS_BENCH_MEASURE_H_
#define CKPTD_TOOLS_BENCH_MEASURE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ckptd::bench {

using TimePoint = std::chrono::steady_clock::time_point;

[[nodiscard]] inline TimePoint Now() { return std::chrono::steady_clock::now(); }
[[nodiscard]] inline double SecondsSince(TimePoint begin) {
  return std::chrono::duration<double>(Now() - begin).count();
}

struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
};
[[nodiscard]] Summary Summarize(std::vector<double> samples);  // at least one

struct Comparison {
  Summary ours;
  Summary limit;
  uint32_t rounds = 0;
};

// One measurement, in the unit of the case.
using Measure = std::function<absl::StatusOr<double>()>;

// `rounds` times both, in turn, each being first in every other round. One round before is thrown away: it pays for
// first touches. CANCELLED after SIGINT or SIGTERM.
[[nodiscard]] absl::StatusOr<Comparison> Alternate(uint32_t rounds, const Measure& ours, const Measure& limit);

// `rounds` times the same, and once more before, which is to be thrown away: it pays for first touches. CANCELLED
// likewise.
[[nodiscard]] absl::Status Repeat(uint32_t rounds, const std::function<absl::Status(bool counts)>& measure);

// SIGINT and SIGTERM end the run between two measurements, so that processes and folders are cleaned up.
void CatchSignals();

}  // namespace ckptd::bench

#endif  // CKPTD_TOOLS_BENCH_MEASURE_H_
