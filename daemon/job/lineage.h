// The history of a job: which snapshots are on it, and where each comes from. lin(a) = every step of a, then
// up(parent(a)); up(p, k) = steps of p up to k, then up(parent(p)). A decision record carries up(parent) flattened, so
// one record answers everything. On one lineage a higher attempt is newer, and within an attempt a higher step.
#ifndef CKPTD_DAEMON_JOB_LINEAGE_H_
#define CKPTD_DAEMON_JOB_LINEAGE_H_

#include <cstdint>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/job/events.h"

namespace ckptd::job {

// Is `id` on lin(decision.attempt)?
[[nodiscard]] bool OnLineage(const v1::DecisionRecord& decision, const SnapshotId& id);

// Fills parent and lineage of `child` for a parent on the lineage of `base`; none = a fresh start.
void SetParent(const v1::DecisionRecord& base, const SnapshotId& parent, v1::DecisionRecord* child);

// How many ranks `attempt` had, as far as `decision` and its lineage tell; 0: they do not.
[[nodiscard]] uint32_t WorldIn(const v1::DecisionRecord& decision, AttemptId attempt);

// What the lineage of `child` does not tell of world sizes, as decisions of older agents do not, by the decisions
// themselves: what this one tells outlives them (pruning.h).
void FillWorlds(const std::vector<v1::DecisionRecord>& decisions, v1::DecisionRecord* child);

// The decision with the highest attempt below `before`; null when there is none. An attempt without a decision has no
// effect.
[[nodiscard]] const v1::DecisionRecord* NewestBefore(const std::vector<v1::DecisionRecord>& decisions,
                                                     AttemptId before);

// A marker is void when a later attempt than the deleter's chose the step: the deleter lost that race.
[[nodiscard]] bool MarkerHolds(const StoredStep& step, const std::vector<v1::DecisionRecord>& decisions,
                               bool voided_by_choice = true);

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_LINEAGE_H_
