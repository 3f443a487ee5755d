#include "daemon/job/pruning.h"

#include <algorithm>
#include <map>
#include <set>

#include "daemon/format/snapshot_ref.h"
#include "daemon/job/lineage.h"

namespace ckptd::job {
namespace {

// Those that only their own decision tells the world size of.
void KeepUntoldWorlds(const v1::DecisionRecord& decision, std::set<AttemptId>* kept) {
  for (const v1::LineageEntry& entry : decision.lineage()) {
    if (entry.world_size() == 0) kept->insert(entry.attempt());
  }
}

// Of each step that is there, the highest decision that chose it.
void KeepChoices(const std::vector<v1::DecisionRecord>& decisions, const std::vector<StoredStep>& steps,
                 std::set<AttemptId>* kept) {
  std::map<SnapshotId, AttemptId> highest;
  for (const StoredStep& step : steps) highest[step.id] = 0;
  for (const v1::DecisionRecord& decision : decisions) {
    const auto step = highest.find(ToId(decision.parent()));
    if (step != highest.end()) step->second = std::max(step->second, decision.attempt());
  }
  for (const auto& [id, attempt] : highest) kept->insert(attempt);
}

}  // namespace

std::vector<AttemptId> NeedlessDecisions(const v1::DecisionRecord& decision,
                                         const std::vector<v1::DecisionRecord>& decisions,
                                         const std::vector<StoredStep>& steps) {
  std::set<AttemptId> kept{decision.parent().attempt()};
  for (const StoredStep& step : steps) kept.insert(step.id.attempt);
  KeepUntoldWorlds(decision, &kept);
  KeepChoices(decisions, steps, &kept);
  std::vector<AttemptId> needless;
  for (const v1::DecisionRecord& each : decisions) {
    if (each.attempt() < decision.attempt() && kept.count(each.attempt()) == 0) needless.push_back(each.attempt());
  }
  return needless;
}

}  // namespace ckptd::job
