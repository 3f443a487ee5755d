// IoQueue over io_uring.
#ifndef CKPTD_DAEMON_OS_URING_QUEUE_H_
#define CKPTD_DAEMON_OS_URING_QUEUE_H_

#include <memory>

#include "daemon/os/io_queue.h"
#include "daemon/os/ring.h"

namespace ckptd {

// Fails with the reason where the kernel has no io_uring, forbids it (kernel.io_uring_disabled, seccomp), or lacks the
// plain read and write operations.
[[nodiscard]] absl::StatusOr<std::unique_ptr<IoQueue>> MakeUringQueue(size_t depth);

// The same queue over another ring that takes `depth` requests.
[[nodiscard]] std::unique_ptr<IoQueue> MakeRingQueue(size_t depth, std::unique_ptr<Ring> ring);

// OK where MakeUringQueue would succeed and a request really completes; else the reason.
[[nodiscard]] absl::Status ProbeUring();

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_URING_QUEUE_H_
