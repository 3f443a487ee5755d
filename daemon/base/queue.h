// A bounded queue between threads. Push never blocks: a full queue is the caller's decision, not a wait.
#ifndef CKPTD_DAEMON_BASE_QUEUE_H_
#define CKPTD_DAEMON_BASE_QUEUE_H_

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "daemon/base/mutex.h"

namespace ckptd {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // False when full or closed; `item` is then untouched.
  [[nodiscard]] bool TryPush(T&& item) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (closed_ || items_.size() >= capacity_) return false;
    items_.push_back(std::move(item));
    not_empty_.NotifyOne();
    return true;
  }

  // Waits for an item. Empty when the queue is closed and drained.
  [[nodiscard]] std::optional<T> Pop() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (items_.empty() && !closed_) not_empty_.Wait(mutex_);
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
    return items_.size();
  }

 private:
  std::optional<T> TakeLocked() CKPTD_REQUIRES(mutex_) {
    if (items_.empty()) return std::nullopt;
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const size_t capacity_;
  Mutex mutex_;
  CondVar not_empty_;
  std::deque<T> items_ CKPTD_GUARDED_BY(mutex_);
  bool closed_ CKPTD_GUARDED_BY(mutex_) = false;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_QUEUE_H_
