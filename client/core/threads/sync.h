// Mutex, condition variable and thread over pthreads. The standard ones are not used because
// std::condition_variable::wait needs GLIBCXX_3.4.30, above the ceiling of this library.
#ifndef CKPTD_CLIENT_CORE_THREADS_SYNC_H_
#define CKPTD_CLIENT_CORE_THREADS_SYNC_H_

#include <pthread.h>

#include <cstdint>

namespace ckptd {

[[nodiscard]] uint64_t MonotonicNs();  // CLOCK_MONOTONIC

// Now plus `timeout_ns`, without wrapping.
[[nodiscard]] uint64_t DeadlineAfter(uint64_t timeout_ns);

class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  ~Mutex() { pthread_mutex_destroy(&mutex_); }

  void Lock() { pthread_mutex_lock(&mutex_); }
  void Unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  friend class CondVar;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) : mutex_(mutex) { mutex_.Lock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() { mutex_.Unlock(); }

 private:
  Mutex& mutex_;
};

// Lets go of a mutex that is held, and takes it again at the end of its scope, however that is left.
class MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) : mutex_(mutex) { mutex_.Unlock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;
  ~MutexUnlock() { mutex_.Lock(); }

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  CondVar();
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;
  ~CondVar() { pthread_cond_destroy(&cond_); }

  void Wait(Mutex& mutex) { pthread_cond_wait(&cond_, &mutex.mutex_); }
  // False when `deadline_ns` (CLOCK_MONOTONIC) has passed.
  bool WaitUntil(Mutex& mutex, uint64_t deadline_ns);
  void NotifyAll() { pthread_cond_broadcast(&cond_); }
  void NotifyOne() { pthread_cond_signal(&cond_); }

 private:
  pthread_cond_t cond_;
};

// Inside of a catch block: what was thrown, in words that outlive it.
[[nodiscard]] const char* Thrown() noexcept;

// A joined thread with every signal blocked: the trainer's handlers never run on it. An exception ends it, and never
// the process, which is somebody's training.
class Thread {
 public:
  using Body = void (*)(void*);
  // Called on the thread, as its last, when an exception has left the body; `why`: Thrown().
  using Broke = void (*)(void*, const char* why) noexcept;

  Thread() = default;
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;
  ~Thread() { Join(); }

  [[nodiscard]] bool Start(const char* name, Body body, Broke broke, void* argument);
  void Join();

 private:
  static void* Run(void* self);

  Body body_ = nullptr;
  Broke broke_ = nullptr;
  void* argument_ = nullptr;
  pthread_t thread_ = {};
  bool started_ = false;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_THREADS_SYNC_H_
