// IoQueue over a few threads that call pread and pwrite: for kernels and containers without io_uring.
#ifndef CKPTD_DAEMON_OS_THREAD_QUEUE_H_
#define CKPTD_DAEMON_OS_THREAD_QUEUE_H_

#include <memory>

#include "daemon/os/io_queue.h"

namespace ckptd {

// `threads` workers, joined when the queue is destroyed.
[[nodiscard]] std::unique_ptr<IoQueue> MakeThreadQueue(size_t depth, size_t threads);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_THREAD_QUEUE_H_
