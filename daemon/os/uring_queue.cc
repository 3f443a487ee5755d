#include "daemon/os/uring_queue.h"

#include <liburing.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

constexpr uint64_t kNoSlot = UINT64_MAX;  // user_data of a request that was turned into a NOP

absl::Status UringError(int error, absl::string_view call) {
  return absl::UnimplementedError(absl::StrCat("io_uring: ", call, ": ", strerror(error)));
}

absl::Status CheckOperations(io_uring& ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) return absl::UnimplementedError("io_uring: the kernel cannot say what it supports");
  bool both = io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_WRITE);
  io_uring_free_probe(probe);
  return both ? absl::OkStatus() : absl::UnimplementedError("io_uring: no read and write operations");
}

class UringQueue final : public IoQueue {
 public:
  explicit UringQueue(size_t depth) : slots_(depth) {
    for (size_t slot = depth; slot > 0; --slot) free_.push_back(slot - 1);
  }

  ~UringQueue() override {
    // The kernel may write to the callers' memory until the last completion, whatever happens to the ring.
    std::vector<IoCompletion> ignored;
    while (in_flight() > 0) Wait(ignored);
    if (open_) io_uring_queue_exit(&ring_);
  }

  absl::Status Open() {
    int result = io_uring_queue_init(static_cast<unsigned>(slots_.size()), &ring_, 0);
    if (result < 0) return UringError(-result, "setup");
    open_ = true;
    return CheckOperations(ring_);
  }

  absl::Status Submit(const IoRequest& request) override {
    CKPTD_RETURN_IF_ERROR(CheckRequest(request, in_flight(), depth()));
    if (request.file->fd() < 0) return Error(ErrorCode::INTERNAL, "io_uring: file without a descriptor");
    size_t slot = free_.back();
    slots_[slot] = IoProgress(request);
    CKPTD_RETURN_IF_ERROR(Start(slot));
    free_.pop_back();
    return absl::OkStatus();
  }

  void Wait(std::vector<IoCompletion>& done) override {
    done.clear();
    while (done.empty() && in_flight() > 0) {
      Reap(WaitForOne(), done);
      io_uring_cqe* more = nullptr;
      while (io_uring_peek_cqe(&ring_, &more) == 0) Reap(more, done);
    }
  }

  size_t in_flight() const override { return slots_.size() - free_.size(); }
  size_t depth() const override { return slots_.size(); }
  absl::string_view name() const override { return "io_uring"; }

 private:
  // Hands what is left of the slot's request to the kernel. On an error the kernel will not touch its memory.
  absl::Status Start(size_t slot) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return Error(ErrorCode::BUSY, "io_uring: submission ring full");
    const IoRequest& request = slots_[slot].request();
    const unsigned length = static_cast<unsigned>(request.length);
    if (request.direction == IoDirection::kWrite) {
      io_uring_prep_write(entry, request.file->fd(), request.memory, length, request.offset);
    } else {
      io_uring_prep_read(entry, request.file->fd(), request.memory, length, request.offset);
    }
    io_uring_sqe_set_data64(entry, slot);
    int result = io_uring_submit(&ring_);
    while (result == -EINTR) result = io_uring_submit(&ring_);
    if (result >= 0) return absl::OkStatus();
    // The entry stays in the ring and goes out with a later submit: make it harmless.
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data64(entry, kNoSlot);
    return FileError(-result, "io_uring submit", request.file->path());
  }

  io_uring_cqe* WaitForOne() {
    io_uring_cqe* entry = nullptr;
    int result = io_uring_wait_cqe(&ring_, &entry);
    while (result == -EINTR || result == -EAGAIN) result = io_uring_wait_cqe(&ring_, &entry);
    if (result < 0) {
      // Requests are in flight into memory that the callers are about to reuse, and the ring cannot tell when they end.
      Log(kError, "io_uring.wait").Error(UringError(-result, "wait"));
      std::abort();
    }
    return entry;
  }

  void Reap(io_uring_cqe* entry, std::vector<IoCompletion>& done) {
    const uint64_t slot = io_uring_cqe_get_data64(entry);
    const int64_t result = entry->res;
    io_uring_cqe_seen(&ring_, entry);
    if (slot == kNoSlot) return;
    absl::StatusOr<bool> complete = slots_[slot].Advance(result);
    absl::Status status = complete.status();
    if (complete.ok() && !*complete) {
      status = Start(slot);
      if (status.ok()) return;
    }
    if (status.ok()) status = CKPTD_FP_STATUS("io_queue.transfer");
    done.push_back({slots_[slot].tag(), std::move(status)});
    free_.push_back(slot);
  }

  io_uring ring_{};
  bool open_ = false;
  std::vector<IoProgress> slots_;
  std::vector<size_t> free_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoQueue>> MakeUringQueue(size_t depth) {
  auto queue = std::make_unique<UringQueue>(depth);
  CKPTD_RETURN_IF_ERROR(queue->Open());
  return queue;
}

absl::Status ProbeUring() {
  CKPTD_RETURN_IF_ERROR(MakeUringQueue(1).status());
  io_uring ring{};
  int result = io_uring_queue_init(1, &ring, 0);
  if (result < 0) return UringError(-result, "setup");
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  result = io_uring_submit_and_wait(&ring, 1);  // a seccomp filter may allow setup and forbid this
  io_uring_queue_exit(&ring);
  return result < 0 ? UringError(-result, "enter") : absl::OkStatus();
}

}  // namespace ckptd
