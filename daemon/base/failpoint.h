// Named points where tests kill, stop, fail or delay a process:
//
//   CKPTD_FP("publish.after_fsync");                       // kill, stop, sleep
//   CKPTD_RETURN_IF_ERROR(CKPTD_FP_STATUS("publish.sync"));  // may also fail
//
// Armed by the environment, read once: CKPTD_FAILPOINTS="name=action[,name=action]", where action is `kill` (SIGKILL to
// itself), `stop` (SIGSTOP), `sleep:<ms>`, `error:<errno>`, each optionally followed by `@N` (act on the N-th hit
// only). Compiled in where CKPTD_FAILPOINTS is set (dev, asan, tsan); a release build holds none.
#ifndef CKPTD_DAEMON_BASE_FAILPOINT_H_
#define CKPTD_DAEMON_BASE_FAILPOINT_H_

#include "absl/status/status.h"

#ifdef CKPTD_FAILPOINTS
#define CKPTD_FP(name) ((void)::ckptd::HitFailpoint(name))
#define CKPTD_FP_STATUS(name) ::ckptd::HitFailpoint(name)
#else
#define CKPTD_FP(name) ((void)0)
#define CKPTD_FP_STATUS(name) ::absl::OkStatus()
#endif

namespace ckptd {

// Any thread. OK unless the point is armed with `error`.
absl::Status HitFailpoint(const char* name);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_FAILPOINT_H_
