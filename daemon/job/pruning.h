// Which decisions of a job nothing needs any more. A job that restarts for weeks has thousands, and each restore reads
// all that are there.
//
// `decision` is that of an attempt that has loaded. Every later attempt goes on from it or from a later one, and asks
// an older decision only these things:
//
//   is a marker void?          some decision above it chose the step: the highest that did answers for all, as long as
//                              the step is there. (Those of attempts that have steps stay too, for people.)
//   how many ranks had they?   the lineage tells, or where it does not (decisions of older agents), the decision itself
//   who captured that step?    asked of what may still be in memory, which is of the parent's attempt. Where the answer
//                              is gone, a fresh start is an error instead
//   was it a parent?           the lineage tells
//
// So whatever of the rest a crash, or a deleter that was cut off meanwhile, leaves or takes: the answers are the same.
// Attempt records below the newest are asked for nothing, but that their names are taken; who creates one anew sees the
// higher one in the listing that follows.
#ifndef CKPTD_DAEMON_JOB_PRUNING_H_
#define CKPTD_DAEMON_JOB_PRUNING_H_

#include <vector>

#include "daemon/base/ids.h"
#include "daemon/job/events.h"

namespace ckptd::job {

// Attempts below decision.attempt() whose decision may go, of `decisions`. A damaged one is not among those and stays.
[[nodiscard]] std::vector<AttemptId> NeedlessDecisions(const v1::DecisionRecord& decision,
                                                       const std::vector<v1::DecisionRecord>& decisions,
                                                       const std::vector<StoredStep>& steps);

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_PRUNING_H_
