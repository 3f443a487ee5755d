// Records that the job's tests make by hand.
#ifndef CKPTD_DAEMON_JOB_JOB_TEST_UTIL_H_
#define CKPTD_DAEMON_JOB_JOB_TEST_UTIL_H_

#include <vector>

#include "daemon/format/snapshot_ref.h"

namespace ckptd::job {

// A decision of `attempt` whose ranks all live at agent A; the first entry of `lineage` is its parent, none is a fresh
// start.
inline v1::DecisionRecord Decision(AttemptId attempt, const std::vector<SnapshotId>& lineage, int ranks = 1) {
  v1::DecisionRecord record;
  record.set_attempt(attempt);
  for (int rank = 0; rank < ranks; ++rank) {
    v1::RankClaim* claim = record.add_ranks();
    claim->set_rank(static_cast<Rank>(rank));
    claim->set_agent("A");
    claim->set_region_id(7);
  }
  if (!lineage.empty()) SetRef(lineage[0], record.mutable_parent());
  for (const SnapshotId& id : lineage) {
    record.add_lineage()->set_attempt(id.attempt);
    record.mutable_lineage(record.lineage_size() - 1)->set_last_step(id.step);
  }
  return record;
}

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_JOB_TEST_UTIL_H_
