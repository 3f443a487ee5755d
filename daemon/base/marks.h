// What the marks of the job protocol's STATE say (job.proto, State), for the rooms that may not ask room job.
#ifndef CKPTD_DAEMON_BASE_MARKS_H_
#define CKPTD_DAEMON_BASE_MARKS_H_

#include <algorithm>
#include <cstdint>

#include "daemon/base/ids.h"

namespace ckptd {

// Whether what was called protected still is. All three marks only grow, so one that was given up and then made good
// again (`complete` == `given_up`) is told by the turns: an odd number of them.
[[nodiscard]] inline bool IsInForce(const SnapshotId& complete, const SnapshotId& given_up, uint64_t turns) {
  return !complete.none() && (complete > given_up || (complete == given_up && turns % 2 == 1));
}

struct ProtectionMarks {
  SnapshotId complete;
  SnapshotId target;
  SnapshotId given_up;
  uint64_t turns = 0;

  bool operator==(const ProtectionMarks&) const = default;
  [[nodiscard]] bool in_force() const { return IsInForce(complete, given_up, turns); }
  // Up to `complete`.
  void GiveUp() {
    given_up = std::max(given_up, complete);
    turns += turns % 2;
  }
  // The maxima of both.
  void Raise(const ProtectionMarks& told) {
    complete = std::max(complete, told.complete);
    target = std::max(target, told.target);
    given_up = std::max(given_up, told.given_up);
    turns = std::max(turns, told.turns);
  }
};

// As an agent keeps them over its own end: those of the highest attempt that it was told of any.
struct KeptMarks {
  AttemptId attempt = 0;
  ProtectionMarks marks;

  bool operator==(const KeptMarks&) const = default;
  // Nothing of an older attempt; of a newer one all is new.
  void Raise(const KeptMarks& told) {
    if (told.attempt > attempt) *this = {told.attempt, {}};
    if (told.attempt == attempt) marks.Raise(told.marks);
  }
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_MARKS_H_
