// The agent's state as one value for ckptctl, the web page and Python.
#ifndef CKPTD_DAEMON_APP_STATUS_VIEW_H_
#define CKPTD_DAEMON_APP_STATUS_VIEW_H_

#include "daemon/app/agent.h"
#include "proto/ckptd/v1/status.pb.h"

namespace ckptd {

// Control thread; from memory, at once.
[[nodiscard]] v1::StatusView BuildStatus(Agent& agent);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_STATUS_VIEW_H_
