// W and G of a running attempt: the newest step that every rank has sealed, and the floor below which steps are dead.
//
//   captured: every rank has sealed s >= G             W = s, G = s + 1
//   dropped:  a rank passed s without a fill or seal   G = largest pos + lead, or, where there is one, the oldest step
//                                                      that some have and nobody has dropped: all may still have it
//
// A rank whose process was reaped has passed every step that it neither fills nor has sealed: another process gets
// another ticket, and with it another attempt. So the steps of the others end at once, not with their patience.
//
// Both are stable facts and exclude each other, so no timer is needed, and a coordinator that restarts comes to the
// same result. It may do so only when every rank has spoken: until then it cannot know what was captured before. `lead`
// doubles while drops repeat, up to 64, so that ranks of different speed meet again; a capture resets it.
#ifndef CKPTD_DAEMON_JOB_GRANTS_H_
#define CKPTD_DAEMON_JOB_GRANTS_H_

#include <set>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/job/events.h"
#include "daemon/job/machine.h"

namespace ckptd::job {

class Grants {
 public:
  // A new attempt, or a restarted coordinator of it.
  void Reset(AttemptId attempt, const SnapshotId& parent);

  // What an agent heard from this coordinator or its predecessor.
  void Raise(const SnapshotId& watermark, StepId floor);

  // `ranks`: the newest report of each rank of the attempt, null where there is none. True when W or G rose.
  bool Update(const std::vector<const v1::RankReport*>& ranks, const Rules& rules);

  [[nodiscard]] const SnapshotId& watermark() const { return watermark_; }
  [[nodiscard]] StepId floor() const { return floor_; }

 private:
  void AddSteps(const v1::RankReport& rank, std::set<StepId>* steps) const;
  [[nodiscard]] StepId NewestCaptured(const std::vector<const v1::RankReport*>& ranks) const;
  [[nodiscard]] bool Dropped(StepId step, const std::vector<const v1::RankReport*>& ranks) const;

  AttemptId attempt_ = 0;
  SnapshotId watermark_;
  StepId floor_ = 0;
  StepId lead_ = 1;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_GRANTS_H_
