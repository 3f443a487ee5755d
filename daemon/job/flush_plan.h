// Which captured snapshots go to the storage, where not all of them do: the coordinator chooses one after the other, so
// that all ranks write the same ones. A step that one rank flushes and another gives up would never be committed.
//
//   every N-th       the N-th step captured since the last choice is the next (durability.flush_every)
//   newest only      and only when the one before is committed, or can not be now or any more (back_pressure
//                    replace-queued): what was captured meanwhile waits in memory, where a newer one may take its place
//   wanted           somebody waits for this step, or a newer one, to be durable: it is the next
//
// First comes the snapshot that the attempt stands on. Pure.
#ifndef CKPTD_DAEMON_JOB_FLUSH_PLAN_H_
#define CKPTD_DAEMON_JOB_FLUSH_PLAN_H_

#include <cstdint>
#include <vector>

#include "daemon/base/ids.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::job {

struct FlushPolicy {
  uint64_t every = 1;        // captured steps
  bool newest_only = false;  // one at a time
  [[nodiscard]] bool selects() const { return every > 1 || newest_only; }
};

class FlushPlan {
 public:
  // A new attempt, or a restarted coordinator of it.
  void Reset(AttemptId attempt, const SnapshotId& parent);

  // `ranks`: the newest report of each rank, null where there is none. True when the target moved.
  bool Update(const FlushPolicy& policy, const std::vector<const v1::RankReport*>& ranks, const SnapshotId& watermark,
              const SnapshotId& durable);

  // All ranks have written it, and its commit failed. It may be committed later, or never.
  void NotCommitted(const SnapshotId& id) { passed_ = passed_ || id == target_; }

  [[nodiscard]] const SnapshotId& target() const { return target_; }

 private:
  [[nodiscard]] bool Busy(const std::vector<const v1::RankReport*>& ranks, const SnapshotId& durable) const;
  [[nodiscard]] bool Asked(const std::vector<const v1::RankReport*>& ranks, const SnapshotId& watermark,
                           const SnapshotId& durable, bool busy) const;

  AttemptId attempt_ = 0;
  SnapshotId target_;
  bool passed_ = false;  // nobody waits for target_
  SnapshotId captured_;  // newest
  uint64_t since_ = 0;   // captured since the target was chosen
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_FLUSH_PLAN_H_
