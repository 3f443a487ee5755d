// A save until another node has it: two agents on loopback, a rank on the first, and the second keeps its copies. Both
// ends share this machine's cores with the trainer, which on a cluster only the sending one does.
#include "absl/strings/str_cat.h"
#include "client/include/ckpt/ckpt.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/agent.h"
#include "tools/bench/cases.h"
#include "tools/bench/job.h"
#include "tools/bench/measure.h"
#include "tools/bench/network_limits.h"
#include "tools/bench/nodes.h"
#include "tools/bench/program.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kState = 512 * kMiB;
constexpr uint64_t kTensors = 1000;

std::unique_ptr<Job> MakeJob(const Options& options, const Agent& agent) {
  return std::make_unique<Job>(agent.socket(), options.ranks, options.bytes != 0 ? options.bytes : kState,
                               options.tensors != 0 ? options.tensors : kTensors);
}

// Nothing of it goes to storage.
struct Alone {
  std::unique_ptr<Agent> agent;
  std::unique_ptr<Job> job;
};
struct Pair {
  Nodes nodes;
  std::unique_ptr<Job> job;
};

absl::StatusOr<Alone> MakeAlone(const Options& options) {
  Alone alone;
  CKPTD_ASSIGN_OR_RETURN(alone.agent, Agent::Make(options, Storage::kNothing));
  CKPTD_RETURN_IF_ERROR(alone.agent->Start().status());
  alone.job = MakeJob(options, *alone.agent);
  CKPTD_RETURN_IF_ERROR(alone.job->Warm(CKPT_CAPTURED));
  return alone;
}

absl::StatusOr<Pair> MakePair(const Options& options, const std::string& bulk) {
  Pair pair;
  CKPTD_ASSIGN_OR_RETURN(pair.nodes, Nodes::Make(options, 2, {"copies = 2", bulk}));
  pair.job = MakeJob(options, pair.nodes[0]);
  CKPTD_RETURN_IF_ERROR(pair.job->Warm(CKPT_PROTECTED));
  return pair;
}

double Rate(const Job& job, double seconds) { return static_cast<double>(job.total_bytes()) / 1e9 / seconds; }

// Its step is with the other node when this returns, so that nothing of it runs beside the next measurement.
absl::StatusOr<Saved> SaveOne(Job& job, uint32_t level) {
  CKPTD_ASSIGN_OR_RETURN(Saved saved, job.Save());
  CKPTD_RETURN_IF_ERROR(job.Await(saved.step, level));
  return saved;
}

absl::StatusOr<Line> ProtectedBy(const Options& options, const Bulk& by) {
  Line line{absl::StrCat("save.protected", by.added), "GB/s", "iperf3, one TCP stream over loopback", {}};
  if (!Installed(kIperf)) line.skipped = absl::StrCat(kIperf, " is not installed (package iperf3)");
  if (!line.skipped.empty()) return line;
  CKPTD_ASSIGN_OR_RETURN(Pair pair, MakePair(options, by.bulk));
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(Saved saved, SaveOne(*pair.job, CKPT_PROTECTED));
    return Rate(*pair.job, SecondsSince(saved.begin));
  };
  CKPTD_ASSIGN_OR_RETURN(line.comparison, Alternate(options.RoundsOr(kRounds), ours, [] { return MeasureIperf(1); }));
  return line;
}

absl::StatusOr<Line> CapturedBeside(const Options& options, const Bulk& by) {
  CKPTD_ASSIGN_OR_RETURN(Pair pair, MakePair(options, by.bulk));
  CKPTD_ASSIGN_OR_RETURN(Alone alone, MakeAlone(options));
  auto measure = [](Job& job, uint32_t level) -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(Saved saved, SaveOne(job, level));
    return Rate(job, saved.copied_seconds);
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found,
                         Alternate(
                             options.RoundsOr(kRounds), [&] { return measure(*pair.job, CKPT_PROTECTED); },
                             [&] { return measure(*alone.job, CKPT_CAPTURED); }));
  return Line{absl::StrCat("save.captured.copies", by.added), "GB/s",
              "the same capture where no other node keeps copies", found};
}

template <absl::StatusOr<Line> (*kCase)(const Options&, const Bulk&)>
absl::StatusOr<Lines> EachWay(const Options& options) {
  Lines lines;
  for (const Bulk& by : kBulks) {
    CKPTD_ASSIGN_OR_RETURN(lines.emplace_back(), kCase(options, by));
  }
  return lines;
}

}  // namespace

// From the call of the save, so the capture is in it.
absl::StatusOr<Lines> SaveProtected(const Options& options) { return EachWay<ProtectedBy>(options); }

absl::StatusOr<Lines> SaveCapturedCopies(const Options& options) { return EachWay<CapturedBeside>(options); }

}  // namespace ckptd::bench
