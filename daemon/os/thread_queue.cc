#include "daemon/os/thread_queue.h"

#include "daemon/base/mutex.h"
#include "daemon/base/queue.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/thread.h"

namespace ckptd {
namespace {

class ThreadQueue final : public IoQueue {
 public:
  ThreadQueue(size_t depth, size_t threads) : depth_(depth), requests_(depth) {
    for (size_t i = 0; i < threads; ++i) workers_.emplace_back("ckptd-io", [this] { Work(); });
  }

  ~ThreadQueue() override { requests_.Close(); }  // workers_ joins first: it is the last member

  absl::Status Submit(const IoRequest& request) override {
    CKPTD_RETURN_IF_ERROR(CheckRequest(request, in_flight_, depth_));
    (void)requests_.TryPush(IoRequest(request));  // has room: it holds at most what is in flight
    ++in_flight_;
    return absl::OkStatus();
  }

  std::vector<IoCompletion> Wait() override {
    std::vector<IoCompletion> done;
    if (in_flight_ == 0) return done;
    {
      MutexLock lock(mutex_);
      while (done_.empty()) some_done_.Wait(mutex_);
      done.swap(done_);
    }
    in_flight_ -= done.size();
    return done;
  }

  size_t in_flight() const override { return in_flight_; }
  size_t depth() const override { return depth_; }
  absl::string_view name() const override { return "threads"; }

 private:
  void Work() {
    while (std::optional<IoRequest> request = requests_.Pop()) {
      IoCompletion completion{request->tag, TransferNow(*request)};
      MutexLock lock(mutex_);
      done_.push_back(std::move(completion));
      some_done_.NotifyOne();
    }
  }

  const size_t depth_;
  size_t in_flight_ = 0;  // of the owner's thread
  BoundedQueue<IoRequest> requests_;
  Mutex mutex_;
  CondVar some_done_;
  std::vector<IoCompletion> done_ CKPTD_GUARDED_BY(mutex_);
  std::vector<Thread> workers_;
};

}  // namespace

std::unique_ptr<IoQueue> MakeThreadQueue(size_t depth, size_t threads) {
  return std::make_unique<ThreadQueue>(depth, threads);
}

}  // namespace ckptd
