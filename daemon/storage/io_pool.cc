#include "daemon/storage/io_pool.h"

#include <cstdlib>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/files.h"

namespace ckptd {
namespace {

template <typename Item>
Item TakeLast(std::vector<Item>& items) {
  Item item = std::move(items.back());
  items.pop_back();
  return item;
}

}  // namespace

void IoPool::FreeMemory::operator()(std::byte* memory) const { std::free(memory); }

absl::StatusOr<IoPool::Queue> IoPool::BorrowQueue() {
  {
    MutexLock lock(mutex_);
    if (!queues_.empty()) return Queue(TakeLast(queues_).release(), GiveBack{this});
  }
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<IoQueue> queue, make_queue_());
  return Queue(queue.release(), GiveBack{this});
}

absl::StatusOr<IoPool::Buffer> IoPool::BorrowBuffer() {
  {
    MutexLock lock(mutex_);
    if (!buffers_.empty()) return Buffer(TakeLast(buffers_).release(), GiveBack{this});
  }
  Memory memory(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, kBufferBytes)));
  if (memory == nullptr) return Error(ErrorCode::REGION_FULL, "no memory for reading from storage");
  return Buffer(memory.release(), GiveBack{this});
}

void IoPool::TakeBack(std::unique_ptr<IoQueue> queue) {
  std::vector<IoCompletion> ignored;
  while (queue->in_flight() > 0) queue->Wait(ignored);
  MutexLock lock(mutex_);
  if (queues_.size() < kKeptQueues) queues_.push_back(std::move(queue));
}

void IoPool::TakeBack(Memory buffer) {
  MutexLock lock(mutex_);
  if (buffers_.size() < kKeptBuffers) buffers_.push_back(std::move(buffer));
}

}  // namespace ckptd
