// What control costs: a commit, a registration.
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

constexpr uint64_t kTinyBytes = 64 * kKiB;
constexpr uint64_t kTensors = 20'000;
constexpr uint64_t kRegisteredBytes = 256 * kMiB;

// A first registration: of an agent that holds nothing.
absl::StatusOr<Registered> RegisterAfresh(Agent& agent, Job& job) {
  job.Close();
  agent.Kill();
  agent.LoseRegion();
  CKPTD_RETURN_IF_ERROR(agent.Start().status());
  CKPTD_RETURN_IF_ERROR(job.Restore(nullptr).status());
  return job.Register();
}

absl::StatusOr<Comparison> CompareCall(Agent& agent, Job& job, uint32_t rounds) {
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(Registered registered, RegisterAfresh(agent, job));
    return registered.call_seconds * 1e3;
  };
  auto limit = [&]() -> absl::StatusOr<double> { return WritePlainHeader(job) * 1e3; };
  return Alternate(rounds, ours, limit);
}

absl::StatusOr<Comparison> CompareReady(Agent& agent, Job& job, const Options& options, uint32_t rounds) {
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(Registered registered, RegisterAfresh(agent, job));
    return registered.ready_seconds * 1e3;
  };
  auto limit = [&]() -> absl::StatusOr<double> {
    job.Close();
    agent.Kill();  // what it prepared is given back before as much is taken
    agent.LoseRegion();
    CKPTD_ASSIGN_OR_RETURN(double seconds, PreparePlainMemory(options, job));
    return seconds * 1e3;
  };
  return Alternate(rounds, ours, limit);
}

}  // namespace

// Neither libckpt nor the agent tells the commit apart from the flush: of a tiny state it is nearly all of it.
absl::StatusOr<Line> Commit(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options, Storage::kEveryStepForEver));  // nothing is deleted beside it
  CKPTD_RETURN_IF_ERROR(agent->Start().status());
  Job job(agent->socket(), options.ranks, options.bytes != 0 ? options.bytes : kTinyBytes,
          options.tensors != 0 ? options.tensors : 1);
  CKPTD_RETURN_IF_ERROR(job.Warm());
  auto ours = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(Saved saved, job.Save());
    CKPTD_RETURN_IF_ERROR(job.Await(saved.step, CKPT_DURABLE));
    return SecondsSince(saved.begin) * 1e3;
  };
  uint32_t number = 0;
  auto limit = [&]() -> absl::StatusOr<double> {
    CKPTD_ASSIGN_OR_RETURN(double seconds, PublishPlainly(agent->storage(), ++number, job));
    return seconds * 1e3;
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  const uint32_t files = 2 * job.ranks() + 1;
  return Line{"commit", "ms",
              absl::StrCat(files, " files written, linked and synced plainly in the agent's order, ",
                           kSyncsOfAFile * files, " fsyncs of files and folders; ours: from ckpt_save of ",
                           FormatBytes(job.total_bytes()), " in all to durable"),
              found};
}

absl::StatusOr<Lines> RegisterLayout(const Options& options) {
  CKPTD_ASSIGN_OR_RETURN(auto agent, Agent::Make(options, Storage::kNothing));
  Job job(agent->socket(), options.ranks, options.bytes != 0 ? options.bytes : kRegisteredBytes,
          options.tensors != 0 ? options.tensors : kTensors);
  const uint32_t rounds = options.RoundsOr(kRounds);
  CKPTD_ASSIGN_OR_RETURN(Comparison called, CompareCall(*agent, job, rounds));
  CKPTD_ASSIGN_OR_RETURN(Comparison ready, CompareReady(*agent, job, options, rounds));
  const std::string tensors = absl::StrCat(job.tensors(), " tensors");
  return Lines{{"register", "ms",
                absl::StrCat("the text of a plain safetensors header of ", tensors,
                             ", appended piece by piece; ours: inside the first ckpt_register"),
                called},
               {"register.ready", "ms",
                absl::StrCat("as much shared memory reserved and populated plainly, in the tmpfs's pages; ours: from "
                             "the call until saves work, two slots of ",
                             FormatBytes(job.state(0).size()), " with ", tensors, ", looked at every ms"),
                ready}};
}

}  // namespace ckptd::bench
