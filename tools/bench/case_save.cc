#include "absl/strings/str_cat.h"
#include "client/include/ckpt/ckpt.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/agent.h"
#include "tools/bench/cases.h"
#include "tools/bench/job.h"
#include "tools/bench/limits.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {
namespace {

// What step() may cost (the contract of the Python package, of which libckpt is a part).
constexpr double kAllowedMs = 1;
constexpr double kAllowedMsPerTensor = 0.0008;

double Rate(const Job& job, double seconds) { return static_cast<double>(job.total_bytes()) / 1e9 / seconds; }

// An agent and a job that has saved once.
struct Setup {
  std::unique_ptr<Agent> agent;
  std::unique_ptr<Job> job;
};

absl::StatusOr<Setup> Prepare(const Options& options, uint64_t bytes, uint64_t tensors, uint8_t flags = 0,
                              Storage storage = Storage::kEveryStep) {
  Setup setup;
  CKPTD_ASSIGN_OR_RETURN(setup.agent, Agent::Make(options, storage));
  CKPTD_RETURN_IF_ERROR(setup.agent->Start().status());
  setup.job = std::make_unique<Job>(setup.agent->socket(), options.ranks, options.bytes != 0 ? options.bytes : bytes,
                                    options.tensors != 0 ? options.tensors : tensors, flags);
  CKPTD_RETURN_IF_ERROR(setup.job->Warm());
  return setup;
}

absl::StatusOr<Line> Captured(const Options& options, const char* name, uint8_t flags, Storage storage) {
  CKPTD_ASSIGN_OR_RETURN(Setup setup, Prepare(options, kGiB, 1000, flags, storage));
  CKPTD_ASSIGN_OR_RETURN(auto mirror, Mirror::Make(*setup.job, options));
  const uint32_t level = storage == Storage::kNothing ? CKPT_CAPTURED : CKPT_DURABLE;
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(Saved saved, setup.job->Save());
    CKPTD_RETURN_IF_ERROR(setup.job->Await(saved.step, level));  // nothing of it runs beside the limit
    return Rate(*setup.job, saved.copied_seconds);
  };
  auto limit = [&]() -> absl::StatusOr<double> { return Rate(*setup.job, mirror->CopyIn()); };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  return Line{name, "GB/s", "memcpy into populated shared memory", found};
}

}  // namespace

absl::StatusOr<Line> SaveBlocked(const Options& options) {
  const uint64_t tensors = options.tensors != 0 ? options.tensors : 20'000;
  CKPTD_ASSIGN_OR_RETURN(Setup setup, Prepare(options, 256 * kMiB, tensors));
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(Saved saved, setup.job->Save());
    CKPTD_RETURN_IF_ERROR(setup.job->Await(saved.step, CKPT_DURABLE));
    return saved.blocked_seconds * 1e3;
  };
  auto limit = [&]() -> absl::StatusOr<double> {
    return kAllowedMs + kAllowedMsPerTensor * static_cast<double>(tensors);
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  return Line{"save.blocked", "ms", absl::StrCat("1 ms + 0.8 us for each of ", tensors, " tensors"), found};
}

absl::StatusOr<Line> SaveCaptured(const Options& options) {
  return Captured(options, "save.captured", 0, Storage::kEveryStep);
}

absl::StatusOr<Line> SaveCapturedStays(const Options& options) {
  return Captured(options, "save.captured.stays", CKPT_STAYS, Storage::kEveryStep);
}

// Of steps that stay in memory, as most do with flush_every.
absl::StatusOr<Line> SaveCapturedAlone(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(Line line, Captured(options, "save.captured.alone", 0, Storage::kNothing));
  line.what += "; nothing is flushed beside ours; the mark is 1.15 times its time, a ratio of 0.87";
  return line;
}

// From the call of the save, so the capture is in it: what a user waits for.
absl::StatusOr<Line> FlushDurable(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(Setup setup, Prepare(options, kGiB, 1000));
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(Saved saved, setup.job->Save());
    CKPTD_RETURN_IF_ERROR(setup.job->Await(saved.step, CKPT_DURABLE));
    return Rate(*setup.job, SecondsSince(saved.begin));
  };
  auto limit = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, WritePlainFile(setup.agent->storage() + "/plain", *setup.job));
    return Rate(*setup.job, seconds);
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  return Line{"flush.durable", "GB/s", "one plain O_DIRECT sequential write with fsync", found};
}

}  // namespace ckptd::bench
