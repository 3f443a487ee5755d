#include "daemon/os/thread_queue.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

class ThreadQueue final : public IoQueue {
 public:
  ThreadQueue(size_t depth, std::shared_ptr<ThreadPool> workers) : workers_(std::move(workers)), requests_(depth) {
    for (size_t slot = depth; slot > 0; --slot) free_.push_back(slot - 1);
    done_.reserve(depth);
  }

  ~ThreadQueue() override {
    std::vector<IoCompletion> ignored;
    while (in_flight() > 0) Wait(ignored);
  }

  absl::Status Submit(const IoRequest& request) override {
    CKPTD_RETURN_IF_ERROR(CheckRequest(request, in_flight(), depth()));
    const size_t slot = free_.back();
    requests_[slot] = request;
    // Two words, so that the function holds them itself: a request costs no allocation.
    if (!workers_->Run([this, slot] { Transfer(slot); }))
      return Error(ErrorCode::BUSY, "I/O queue: no worker takes more");
    free_.pop_back();
    return absl::OkStatus();
  }

  void Wait(std::vector<IoCompletion>& done) override {
    done.clear();
    if (in_flight() == 0) return;
    MutexLock lock(mutex_);
    while (done_.empty()) some_done_.Wait(mutex_);
    for (Done& each : done_) {
      free_.push_back(each.slot);
      done.push_back({requests_[each.slot].tag, std::move(each.status)});
    }
    done_.clear();
  }

  size_t in_flight() const override { return requests_.size() - free_.size(); }
  size_t depth() const override { return requests_.size(); }
  absl::string_view name() const override { return "threads"; }

 private:
  struct Done {
    size_t slot = 0;
    absl::Status status;
  };

  // On a worker. The queue may be gone as soon as the lock is given back.
  void Transfer(size_t slot) {
    absl::Status status = TransferNow(requests_[slot]);
    MutexLock lock(mutex_);
    done_.push_back({slot, std::move(status)});
    some_done_.NotifyOne();
  }

  const std::shared_ptr<ThreadPool> workers_;
  std::vector<IoRequest> requests_;
  std::vector<size_t> free_;  // of the owner's thread
  Mutex mutex_;
  CondVar some_done_;
  std::vector<Done> done_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<IoQueue> MakeThreadQueue(size_t depth, std::shared_ptr<ThreadPool> workers) {
  return std::make_unique<ThreadQueue>(depth, std::move(workers));
}

}  // namespace ckptd
