// std::mutex with clang's thread-safety annotations. (absl::Mutex of the distribution is not instrumented, so TSan
// would report false races.) Use Mutex + CKPTD_GUARDED_BY; hold it over memory only, never over I/O.
#ifndef CKPTD_DAEMON_BASE_MUTEX_H_
#define CKPTD_DAEMON_BASE_MUTEX_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define CKPTD_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define CKPTD_THREAD_ANNOTATION(x)
#endif
#define CKPTD_CAPABILITY(x) CKPTD_THREAD_ANNOTATION(capability(x))
#define CKPTD_SCOPED_CAPABILITY CKPTD_THREAD_ANNOTATION(scoped_lockable)
#define CKPTD_GUARDED_BY(x) CKPTD_THREAD_ANNOTATION(guarded_by(x))
#define CKPTD_REQUIRES(...) CKPTD_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define CKPTD_EXCLUDES(...) CKPTD_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define CKPTD_ACQUIRE(...) CKPTD_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define CKPTD_RELEASE(...) CKPTD_THREAD_ANNOTATION(release_capability(__VA_ARGS__))

namespace ckptd {

class CKPTD_CAPABILITY("mutex") Mutex {
 public:
  void Lock() CKPTD_ACQUIRE() { mutex_.lock(); }
  void Unlock() CKPTD_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class CKPTD_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CKPTD_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() CKPTD_RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Wait in a loop over the condition: wake-ups may be spurious.
class CondVar {
 public:
  void Wait(Mutex& mutex) CKPTD_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False when `deadline` (steady clock) passed.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline) CKPTD_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    bool in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_MUTEX_H_
