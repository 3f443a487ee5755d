// Which snapshot an attempt restores (protocol.md, "New attempt" step 4 and "Fresh start"). A pure function.
//
// Candidates are the snapshots on the lineage of the newest decided attempt that *every* rank can get from somewhere:
// sealed in a slot its agent can serve, had by another agent that can give it, or committed on storage. The newest is
// taken, or exactly the step that was asked for; a load that failed excludes its storage step, or what other agents
// have of it, for the rest of this restore() call. Answer 0 (a fresh start) needs proof that nothing exists: anything
// else is an error that names what is missing, never a silent 0.
#ifndef CKPTD_DAEMON_JOB_DECISION_H_
#define CKPTD_DAEMON_JOB_DECISION_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/job/events.h"
#include "daemon/job/machine.h"

namespace ckptd::job {

// What an agent's REPORT of this attempt says of its memory as a whole.
struct Memory {
  uint64_t region_id = 0;
  AttemptId lost = 0;  // up to this attempt it may have lost snapshots; 0 = none
};

// Why a step cannot be taken.
struct Obstacle {
  ErrorCode code = ErrorCode::OK;
  std::string reason;
  std::optional<Rank> rank;  // whose part it is about; none: no single one's
};

struct Inventory {
  absl::string_view job;
  AttemptId attempt = 0;  // the one that decides
  v1::Want want;
  uint32_t world_size = 0;
  std::vector<v1::DecisionRecord> decisions;
  std::set<AttemptId> unreadable;  // whose decision is damaged: what it said is not known
  std::vector<StoredStep> steps;
  std::vector<std::set<SnapshotId>> sealed;  // by rank
  std::vector<std::set<SnapshotId>> copied;  // by rank: any agent has it and can give it; empty as a whole: no copies
  std::map<SnapshotId, std::string> elsewhere;  // sealed at an agent where its rank did not join: not servable
  std::set<SnapshotId> quarantined;             // a part of it was found damaged in memory
  std::map<std::string, Memory> answered;       // agents whose REPORT of this attempt came
  std::set<std::string> silent;                 // agents that may hold copies, and have not answered
  std::map<SnapshotId, Obstacle> excluded;      // on storage, and why
  std::set<SnapshotId> excluded_copies;         // nobody who has it could give it
  std::map<SnapshotId, std::string> losses;     // with copies or parity: whose part is nowhere, and why (losses.h)
};

struct Choice {
  SnapshotId parent;  // none = fresh start
  std::vector<v1::SkippedStep> skipped;
};

[[nodiscard]] absl::StatusOr<Choice> Choose(const Inventory& inventory, const Rules& rules);

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_DECISION_H_
