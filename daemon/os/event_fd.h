// eventfd: a counter to wake a poller with. A hint only: many signals may arrive as one.
#ifndef CKPTD_DAEMON_OS_EVENT_FD_H_
#define CKPTD_DAEMON_OS_EVENT_FD_H_

#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd {

// Non-blocking, close-on-exec.
[[nodiscard]] absl::StatusOr<UniqueFd> CreateEventFd();
void SignalEventFd(int fd);  // any thread; never blocks
void DrainEventFd(int fd);   // readable no more until the next signal

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_EVENT_FD_H_
