// A State says with each change what most of its members have long heard: the decision names every rank, and with
// thousands of ranks and members that is more than all the rest together. So to who has it, the coordinator sends it
// without (State.as_in), and who has it not, because its agent started anew, asks for the whole (Report.lacks).
#ifndef CKPTD_DAEMON_JOB_BRIEF_H_
#define CKPTD_DAEMON_JOB_BRIEF_H_

#include "daemon/job/events.h"

namespace ckptd::job {

// `state` without what it has in common with all States since the one of version `as_in`.
[[nodiscard]] StatePtr Brief(const v1::State& state, uint64_t as_in);

// `state`, whole: what it leaves out is filled in from `known`, which may be null. Null: `known` does not have it.
[[nodiscard]] StatePtr Whole(const StatePtr& state, const StatePtr& known);

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_BRIEF_H_
