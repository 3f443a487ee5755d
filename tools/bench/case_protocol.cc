// What deciding costs the coordinator of a large job, and what it says to how many. The limits are the contract's: a
// second to decide, 1 GiB of memory.
#include <malloc.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/cases.h"
#include "tools/bench/fleet.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {
namespace {

constexpr uint32_t kRanks = 10'000;
constexpr uint32_t kPerAgent = 8;
constexpr uint64_t kSteps = 3;
constexpr double kLimitMs = 1000;
constexpr double kLimitMiB = 1024;

struct Sample {
  double restore_ms = 0;
  double commit_ms = 0;  // of the slowest
  double memory_mib = 0;
  double sent_per_commit = 0;  // bytes
};

// In use by this process' heap.
double HeapMiB() {
  const struct mallinfo2 heap = mallinfo2();
  return static_cast<double>(heap.uordblks + heap.hblkhd) / static_cast<double>(kMiB);
}

double Milliseconds(Nanos span) { return static_cast<double>(span.count()) / 1e6; }

absl::StatusOr<Sample> MeasureFleet(uint32_t ranks) {
  const double before = HeapMiB();
  Sample sample;
  Fleet fleet({.ranks = ranks, .per_agent = kPerAgent});
  fleet.Restore();
  sample.restore_ms = Milliseconds(fleet.spent());
  if (!fleet.runs()) return Error(ErrorCode::INTERNAL, "the job does not run");
  const uint64_t sent = fleet.sent_bytes();
  for (uint64_t step = 1; step <= kSteps; ++step) {
    const Nanos begin = fleet.spent();
    fleet.Save(step);
    if (fleet.durable() != step) return Error(ErrorCode::INTERNAL, absl::StrCat("step ", step, " is not durable"));
    sample.commit_ms = std::max(sample.commit_ms, Milliseconds(fleet.spent() - begin));
  }
  sample.memory_mib = HeapMiB() - before;
  sample.sent_per_commit = static_cast<double>(fleet.sent_bytes() - sent) / kSteps;
  return sample;
}

Line Of(const char* name, const char* unit, std::string what, const std::vector<Sample>& samples, double Sample::*value,
        double limit) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const Sample& sample : samples) values.push_back(sample.*value);
  Comparison found;
  found.ours = Summarize(values);
  found.limit = Summarize({limit});
  found.rounds = static_cast<uint32_t>(values.size());
  return Line{name, unit, std::move(what), found};
}

}  // namespace

absl::StatusOr<Lines> Protocol(const Options& options) {
  const uint32_t ranks = std::max(options.ranks > 1 ? options.ranks : kRanks, kPerAgent) / kPerAgent * kPerAgent;
  std::vector<Sample> samples;
  for (uint32_t i = 0; i < options.RoundsOr(kRounds); ++i) {
    CKPTD_ASSIGN_OR_RETURN(Sample sample, MeasureFleet(ranks));
    samples.push_back(sample);
  }
  const std::string fleet = absl::StrCat(ranks, " ranks on ", ranks / kPerAgent, " simulated agents");
  return Lines{
      Of("protocol.restore", "ms", absl::StrCat("the contract; ours: all restores of ", fleet, " decided and let go"),
         samples, &Sample::restore_ms, kLimitMs),
      Of("protocol.commit", "ms",
         absl::StrCat("the contract; ours: a step of ", fleet, " captured and durable; ",
                      FormatBytes(static_cast<uint64_t>(samples.back().sent_per_commit)), " sent for it to all"),
         samples, &Sample::commit_ms, kLimitMs),
      Of("protocol.memory", "MiB",
         absl::StrCat("the contract; ours: heap of the coordinator and of what is simulated, ", fleet), samples,
         &Sample::memory_mib, kLimitMiB)};
}

}  // namespace ckptd::bench
