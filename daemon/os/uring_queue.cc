#include "daemon/os/uring_queue.h"

#include <liburing.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

class UringQueue final : public IoQueue {
 public:
  UringQueue(size_t depth, std::unique_ptr<Ring> ring) : ring_(std::move(ring)), slots_(depth) {
    for (size_t slot = depth; slot > 0; --slot) free_.push_back(slot - 1);
  }

  ~UringQueue() override {
    // The kernel may write to the callers' memory until the last completion, whatever happens to the ring.
    std::vector<IoCompletion> ignored;
    while (in_flight() > 0) Wait(ignored);
  }

  absl::Status Submit(const IoRequest& request) override {
    CKPTD_RETURN_IF_ERROR(CheckRequest(request, in_flight(), depth()));
    if (request.file->fd() < 0) return Error(ErrorCode::INTERNAL, "io_uring: file without a descriptor");
    size_t slot = free_.back();
    slots_[slot] = IoProgress(request);
    CKPTD_RETURN_IF_ERROR(ring_->Start(slots_[slot].request(), slot));
    free_.pop_back();
    return absl::OkStatus();
  }

  void Wait(std::vector<IoCompletion>& done) override {
    done.clear();
    while (done.empty() && in_flight() > 0) {
      Take(ring_->Wait(), done);
      while (const auto more = ring_->Poll()) Take(*more, done);
    }
  }

  size_t in_flight() const override { return slots_.size() - free_.size(); }
  size_t depth() const override { return slots_.size(); }
  absl::string_view name() const override { return "io_uring"; }

 private:
  // What is left of a request after a short transfer goes to the ring again.
  void Take(const Ring::Done& result, std::vector<IoCompletion>& done) {
    IoProgress& progress = slots_[result.slot];
    absl::StatusOr<bool> complete = progress.Advance(result.result);
    absl::Status status = complete.status();
    if (complete.ok() && !*complete) {
      status = ring_->Start(progress.request(), result.slot);
      if (status.ok()) return;
    }
    if (status.ok()) status = CKPTD_FP_STATUS("io_queue.transfer");
    done.push_back({progress.tag(), std::move(status)});
    free_.push_back(result.slot);
  }

  const std::unique_ptr<Ring> ring_;
  std::vector<IoProgress> slots_;
  std::vector<size_t> free_;
};

}  // namespace

std::unique_ptr<IoQueue> MakeRingQueue(size_t depth, std::unique_ptr<Ring> ring) {
  return std::make_unique<UringQueue>(depth, std::move(ring));
}

absl::StatusOr<std::unique_ptr<IoQueue>> MakeUringQueue(size_t depth) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<Ring> ring, MakeRing(depth));
  return MakeRingQueue(depth, std::move(ring));
}

absl::Status ProbeUring() {
  CKPTD_RETURN_IF_ERROR(MakeUringQueue(1).status());
  io_uring ring{};
  int result = io_uring_queue_init(1, &ring, 0);
  const char* call = "setup";
  if (result >= 0) {
    call = "enter";
    io_uring_prep_nop(io_uring_get_sqe(&ring));
    result = io_uring_submit_and_wait(&ring, 1);  // a seccomp filter may allow setup and forbid this
    io_uring_queue_exit(&ring);
  }
  return result < 0 ? absl::UnimplementedError(absl::StrCat("io_uring: ", call, ": ", strerror(-result)))
                    : absl::OkStatus();
}

}  // namespace ckptd
