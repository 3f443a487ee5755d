// IoQueue over a few threads that call pread and pwrite: for kernels and containers without io_uring.
#ifndef CKPTD_DAEMON_OS_THREAD_QUEUE_H_
#define CKPTD_DAEMON_OS_THREAD_QUEUE_H_

#include <memory>

#include "daemon/os/io_queue.h"
#include "daemon/os/thread.h"

namespace ckptd {

// `workers` may serve many queues.
[[nodiscard]] std::unique_ptr<IoQueue> MakeThreadQueue(size_t depth, std::shared_ptr<ThreadPool> workers);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_THREAD_QUEUE_H_
