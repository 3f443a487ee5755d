// What the marks of the job protocol's STATE say (job.proto, State), for the rooms that may not ask room job.
#ifndef CKPTD_DAEMON_BASE_MARKS_H_
#define CKPTD_DAEMON_BASE_MARKS_H_

#include <cstdint>

#include "daemon/base/ids.h"

namespace ckptd {

// Whether what was called protected still is. All three marks only grow, so one that was given up and then made good
// again (`complete` == `given_up`) is told by the turns: an odd number of them.
[[nodiscard]] inline bool IsInForce(const SnapshotId& complete, const SnapshotId& given_up, uint64_t turns) {
  return !complete.none() && (complete > given_up || (complete == given_up && turns % 2 == 1));
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_MARKS_H_
