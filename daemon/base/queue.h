// A bounded queue between threads. Push never blocks: a full queue is the caller's decision, not a wait. Its memory
// grows to what was queued at most and is then used again: a queue that is warm allocates nothing.
#ifndef CKPTD_DAEMON_BASE_QUEUE_H_
#define CKPTD_DAEMON_BASE_QUEUE_H_

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/base/mutex.h"

namespace ckptd {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `item` is then untouched.
  [[nodiscard]] bool TryPush(T&& item) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || count_ >= capacity_) return false;
    if (count_ == ring_.size()) GrowLocked();
    ring_[(first_ + count_) % ring_.size()] = std::move(item);
    ++count_;
    not_empty_.NotifyOne();
    return true;
  }

  // Waits for an item. Empty when the queue is closed and drained.
  [[nodiscard]] std::optional<T> Pop() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (count_ == 0 && !closed_) not_empty_.Wait(mutex_);
    return TakeLocked();
  }

  [[nodiscard]] std::optional<T> TryPop() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return TakeLocked();
  }

  // Items already queued can still be popped.
  void Close() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    closed_ = true;
    not_empty_.NotifyAll();
  }

  [[nodiscard]] size_t size() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return count_;
  }

 private:
  std::optional<T> TakeLocked() CKPTD_REQUIRES(mutex_) {
    if (count_ == 0) return std::nullopt;
    std::optional<T> item = std::exchange(ring_[first_], std::nullopt);
    first_ = (first_ + 1) % ring_.size();
    --count_;
    return item;
  }

  void GrowLocked() CKPTD_REQUIRES(mutex_) {
    std::vector<std::optional<T>> larger(ring_.empty() ? 16 : 2 * ring_.size());
    for (size_t i = 0; i < count_; ++i) larger[i] = std::move(ring_[(first_ + i) % ring_.size()]);
    ring_ = std::move(larger);
    first_ = 0;
  }

  const size_t capacity_;
  Mutex mutex_;
  CondVar not_empty_;
  std::vector<std::optional<T>> ring_ CKPTD_GUARDED_BY(mutex_);
  size_t first_ CKPTD_GUARDED_BY(mutex_) = 0;
  size_t count_ CKPTD_GUARDED_BY(mutex_) = 0;
  bool closed_ CKPTD_GUARDED_BY(mutex_) = false;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_QUEUE_H_
