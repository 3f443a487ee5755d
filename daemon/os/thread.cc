#include "daemon/os/thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <system_error>
#include <utility>

namespace ckptd {
namespace {

constexpr size_t kMaxThreadName = 15;

[[noreturn]] void EndWithoutThread(const std::string& name, const std::system_error& error) {
  std::fprintf(stderr,
               "ckptd: no thread for %s: %s\n"
               "  next: raise the limit of threads (TasksMax= of the service, ulimit -u), or free memory\n",
               name.c_str(), error.code().message().c_str());
  _exit(1);
}

// A new thread inherits the maker's mask; set it around the creation, so that no signal can arrive in between.
std::thread StartWithSignalsBlocked(const std::string& name, std::function<void()> body) try {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
} catch (const std::system_error& error) {
  EndWithoutThread(name, error);
}

// Linux gives each thread a nice value of its own (setpriority(2), "C library/kernel differences"). One that cannot be
// had costs nothing but the order.
constexpr int kNiceBehind = 10;
void GoBehind() { (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNiceBehind); }

}  // namespace

Thread::Thread(const std::string& name, std::function<void()> body, Priority priority)
    : thread_(StartWithSignalsBlocked(name, [priority, body = std::move(body)] {
        if (priority == Priority::kBehind) GoBehind();
        body();
      })) {
  pthread_setname_np(thread_.native_handle(), name.substr(0, kMaxThreadName).c_str());
}

Thread::~Thread() { Join(); }

void Thread::Join() {
  if (thread_.joinable()) thread_.join();
}

ThreadPool::ThreadPool(const std::string& name, size_t threads, size_t queue_capacity, Priority priority)
    : queue_(queue_capacity), working_(threads) {
  for (size_t i = 0; i < threads; ++i)
    workers_.emplace_back(
        name, [this] { Work(); }, priority);
}

void ThreadPool::Work() {
  while (auto work = queue_.Pop()) (*work)();
  MutexLock lock(mutex_);
  --working_;
  ended_.NotifyAll();
}

ThreadPool::~ThreadPool() { Stop(); }

bool ThreadPool::Run(std::function<void()> work) { return queue_.TryPush(std::move(work)); }

void ThreadPool::Stop() {
  queue_.Close();
  for (Thread& worker : workers_) worker.Join();
}

bool ThreadPool::StopWithin(Nanos patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  queue_.Close();
  {
    MutexLock lock(mutex_);
    while (working_ > 0) {
      if (!ended_.WaitUntil(mutex_, deadline)) break;
    }
    if (working_ > 0) return false;
  }
  Stop();
  return true;
}

}  // namespace ckptd
