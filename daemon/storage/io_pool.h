// What a store keeps for its next reader or writer: I/O queues and buffers to read into. Making them anew for each part
// would cost every save page faults, allocations and system calls.
//
// Any thread; what was borrowed belongs to the borrowing thread until it is given back. What is borrowed by more than
// kKept at a time goes when it comes back.
#ifndef CKPTD_DAEMON_STORAGE_IO_POOL_H_
#define CKPTD_DAEMON_STORAGE_IO_POOL_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/mutex.h"
#include "daemon/os/io_queue.h"

namespace ckptd {

class IoPool {
 public:
  static constexpr size_t kBufferBytes = size_t{4} << 20;
  static constexpr size_t kKeptBuffers = 2;  // 8 MiB of the agent's 30
  static constexpr size_t kKeptQueues = 32;  // a descriptor each

  struct FreeMemory {
    void operator()(std::byte* memory) const;
  };
  struct GiveBack {
    IoPool* pool;
    void operator()(IoQueue* queue) const { pool->TakeBack(std::unique_ptr<IoQueue>(queue)); }
    void operator()(std::byte* buffer) const { pool->TakeBack(Memory(buffer)); }
  };
  using Memory = std::unique_ptr<std::byte, FreeMemory>;
  using Queue = std::unique_ptr<IoQueue, GiveBack>;     // given back idle: waits for what is in flight
  using Buffer = std::unique_ptr<std::byte, GiveBack>;  // kBufferBytes, aligned for direct I/O

  explicit IoPool(IoQueueFactory make_queue) : make_queue_(std::move(make_queue)) {}

  // The pool outlives what it lends.
  [[nodiscard]] absl::StatusOr<Queue> BorrowQueue() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] absl::StatusOr<Buffer> BorrowBuffer() CKPTD_EXCLUDES(mutex_);

 private:
  void TakeBack(std::unique_ptr<IoQueue> queue) CKPTD_EXCLUDES(mutex_);
  void TakeBack(Memory buffer) CKPTD_EXCLUDES(mutex_);

  const IoQueueFactory make_queue_;
  Mutex mutex_;
  // The one given back last is lent first: its pages are in the caches.
  std::vector<std::unique_ptr<IoQueue>> queues_ CKPTD_GUARDED_BY(mutex_);
  std::vector<Memory> buffers_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_IO_POOL_H_
