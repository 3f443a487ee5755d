#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/include/ckpt/ckpt.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/probe.h"
#include "tools/bench/agent.h"
#include "tools/bench/cases.h"
#include "tools/bench/job.h"
#include "tools/bench/measure.h"
#include "tools/bench/room.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kAdoptBytes = 4 * kGiB;  // of one slot; a region of two

absl::StatusOr<double> StartMs(Agent& agent) {
  agent.Kill();
  CKPTD_ASSIGN_OR_RETURN(double seconds, agent.Start());
  return seconds * 1e3;
}

// Why there is no room for two slots, the state and a reserve; "" = there is.
absl::StatusOr<std::string> NoRoom(const Options& options, uint64_t bytes) {
  CKPTD_ASSIGN_OR_RETURN(TmpfsFacts tmpfs, ProbeTmpfs(options.region));
  CKPTD_ASSIGN_OR_RETURN(SpaceInfo disk, PosixFiles().Space(options.dir));
  const uint64_t memory = (kSlots + 1) * bytes * options.ranks + kGiB;
  const uint64_t files = 3 * bytes * options.ranks;
  const uint64_t free_memory = std::min(tmpfs.available, AvailableMemory());
  if (free_memory < memory) {
    return absl::StrCat("needs ", FormatBytes(memory), " of memory, ", FormatBytes(free_memory), " are free: --bytes");
  }
  if (disk.available < files) {
    return absl::StrCat(options.dir, " needs ", FormatBytes(files), ", ", FormatBytes(disk.available), " are free");
  }
  return "";
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
  CKPTD_ASSIGN_OR_RETURN(std::string no_room, NoRoom(options, bytes));
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

}  // namespace ckptd::bench
