#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/include/ckpt/ckpt.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/agent.h"
#include "tools/bench/cases.h"
#include "tools/bench/job.h"
#include "tools/bench/measure.h"
#include "tools/bench/room.h"
#include "tools/bench/usage.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kAdoptBytes = 4 * kGiB;  // of one slot; a region of two
constexpr std::chrono::seconds kRest(2);
constexpr double kAllowedPercent = 0.1;  // of one core
constexpr double kAllowedMiB = 30;

absl::StatusOr<double> StartMs(Agent& agent) {
  agent.Kill();
  CKPTD_ASSIGN_OR_RETURN(double seconds, agent.Start());
  return seconds * 1e3;
}

struct Rest {
  double percent = 0;            // of one core
  double sleeps_per_second = 0;  // a thread that ended meanwhile takes its own along
};

absl::StatusOr<Rest> WatchRest(pid_t pid) {
  CKPTD_ASSIGN_OR_RETURN(const uint64_t sleeps, SleepsOf(pid));
  CKPTD_ASSIGN_OR_RETURN(const double used, CpuSecondsOf(pid));
  TimePoint begin = Now();
  std::this_thread::sleep_for(kRest);
  CKPTD_ASSIGN_OR_RETURN(const double used_then, CpuSecondsOf(pid));
  const double seconds = SecondsSince(begin);
  CKPTD_ASSIGN_OR_RETURN(const uint64_t sleeps_then, SleepsOf(pid));
  return Rest{100 * (used_then - used) / seconds,
              std::max(0.0, static_cast<double>(sleeps_then) - static_cast<double>(sleeps)) / seconds};
}

}  // namespace

absl::StatusOr<Line> AgentStart(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options));
  auto ours = [&] { return StartMs(*agent); };
  auto limit = []() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, TimeProgram({"/bin/true"}));
    return seconds * 1e3;
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  return Line{"agent.start", "ms", "fork, exec and wait of /bin/true", found};
}

// An agent that was killed finds what it left; the limit is a start that finds nothing.
absl::StatusOr<Line> Adopt(const Options& options) {
  const uint64_t bytes = options.bytes != 0 ? options.bytes : kAdoptBytes;
  CKPTD_ASSIGN_OR_RETURN(std::string no_room, NoRoom(options, bytes, 3));
  if (!no_room.empty()) return Line{"adopt", "", "", {}, no_room};
  CKPTD_ASSIGN_OR_RETURN(auto empty, Agent::Make(options));
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options));
  CKPTD_RETURN_IF_ERROR(agent->Start().status());
  {
    Job job(agent->socket(), options.ranks, bytes, options.tensors != 0 ? options.tensors : 1000);
    CKPTD_RETURN_IF_ERROR(job.Warm());
    CKPTD_ASSIGN_OR_RETURN(Saved second, job.Save());  // both slots hold a snapshot
    CKPTD_RETURN_IF_ERROR(job.Await(second.step, CKPT_DURABLE));
  }
  auto ours = [&] { return StartMs(*agent); };
  auto limit = [&] { return StartMs(*empty); };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  std::string held = FormatBytes(kSlots * bytes * options.ranks);
  return Line{"adopt", "ms", absl::StrCat("start with an empty region; ours holds ", held), found};
}

// Trainers are connected and have a snapshot in memory; they compute, as it were.
absl::StatusOr<Line> AgentRest(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options, Storage::kEveryStep, Admin::kOn));
  CKPTD_RETURN_IF_ERROR(agent->Start().status());
  Job job(agent->socket(), options.ranks, options.bytes != 0 ? options.bytes : kMiB,
          options.tensors != 0 ? options.tensors : 1000);
  CKPTD_RETURN_IF_ERROR(job.Warm());
  std::vector<double> percents;
  std::vector<double> sleeps;
  const uint32_t rounds = options.RoundsOr(kRounds);
  CKPTD_RETURN_IF_ERROR(Repeat(rounds, [&](bool counts) -> absl::Status {
    CKPTD_ASSIGN_OR_RETURN(Rest rest, WatchRest(agent->pid()));
    if (!counts) return absl::OkStatus();
    percents.push_back(rest.percent);
    sleeps.push_back(rest.sleeps_per_second);
    return absl::OkStatus();
  }));
  const Summary allowed = {kAllowedPercent, kAllowedPercent, kAllowedPercent};
  const std::string what = absl::StrFormat(
      "0.1 %% of one core; ours: CPU time of the agent in %d s without a save, --ranks %d; its threads go "
      "to sleep %.3g times a second",
      kRest.count(), job.ranks(), Summarize(sleeps).median);
  return Line{"agent.rest", "%", what, {Summarize(percents), allowed, rounds}};
}

// Each time a new agent, job and storage: what one keeps is not the next one's.
absl::StatusOr<Line> AgentMemory(const Options& options) {
  const uint64_t tensors = options.tensors != 0 ? options.tensors : 20'000;
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options, Storage::kEveryStep, Admin::kOn));
    CKPTD_RETURN_IF_ERROR(agent->Start().status());
    Job job(agent->socket(), options.ranks, options.bytes != 0 ? options.bytes : 64 * kMiB, tensors);
    CKPTD_RETURN_IF_ERROR(job.Warm());
    CKPTD_ASSIGN_OR_RETURN(uint64_t bytes, OwnMemoryOf(agent->pid()));
    return static_cast<double>(bytes) / kMiB;
  };
  auto limit = []() -> absl::StatusOr<double> { return kAllowedMiB; };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  return Line{
      "agent.memory", "MiB",
      absl::StrCat("30 MiB; ours: RssAnon and RssFile of the agent after a durable save, which the region is not in; ",
                   tensors, " tensors, --ranks ", options.ranks),
      found};
}

}  // namespace ckptd::bench
