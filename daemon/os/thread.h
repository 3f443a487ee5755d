// Owned, named, joined threads, and a pool of them as an Executor.
#ifndef CKPTD_DAEMON_OS_THREAD_H_
#define CKPTD_DAEMON_OS_THREAD_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/base/clock.h"
#include "daemon/base/executor.h"
#include "daemon/base/mutex.h"
#include "daemon/base/queue.h"

namespace ckptd {

// Against the other threads of this machine, where cores are short: kBehind gets a tenth of what a trainer's gets. Not
// where the system does not let it, as the filter of the systemd service: with setpriority its exposure would be 2.2.
enum class Priority { kNormal, kBehind };

// Joined on destruction. `name` is what top and gdb show, cut to 15 bytes. All signals are blocked in it (signal.h).
// Where the system gives no thread the process says so and ends (status 1): whoever asks for one cannot go on without.
class Thread {
 public:
  Thread(const std::string& name, std::function<void()> body, Priority priority = Priority::kNormal);
  ~Thread();
  Thread(Thread&&) = default;
  Thread& operator=(Thread&&) = delete;

  void Join();  // idempotent

 private:
  std::thread thread_;
};

// A fixed number of workers behind one bounded queue. Any thread.
class ThreadPool final : public Executor {
 public:
  ThreadPool(const std::string& name, size_t threads, size_t queue_capacity, Priority priority = Priority::kNormal);
  ~ThreadPool() override;  // Stop()

  [[nodiscard]] bool Run(std::function<void()> work) override;
  // Takes no more work, runs what is queued, joins. Idempotent; not from a worker.
  void Stop();
  // The same, but false when a worker is still at its work after `patience`: it hangs, and whoever joins it does too.
  [[nodiscard]] bool StopWithin(Nanos patience) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] size_t queued() { return queue_.size(); }

 private:
  void Work() CKPTD_EXCLUDES(mutex_);

  BoundedQueue<std::function<void()>> queue_;
  Mutex mutex_;
  CondVar ended_;
  size_t working_ CKPTD_GUARDED_BY(mutex_);  // threads that have not ended
  std::vector<Thread> workers_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_THREAD_H_
