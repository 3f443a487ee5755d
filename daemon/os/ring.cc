#include "daemon/os/ring.h"

#include <liburing.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
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

class KernelRing final : public Ring {
 public:
  ~KernelRing() override {
    if (open_) io_uring_queue_exit(&ring_);
  }

  absl::Status Open(size_t depth) {
    int result = io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0);
    if (result < 0) return UringError(-result, "setup");
    open_ = true;
    return CheckOperations(ring_);
  }

  absl::Status Start(const IoRequest& request, uint64_t slot) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return Error(ErrorCode::BUSY, "io_uring: submission ring full");
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

  Done Wait() override {
    for (;;) {
      if (const auto done = Take(WaitForOne())) return *done;
    }
  }

  std::optional<Done> Poll() override {
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      if (const auto done = Take(entry)) return done;
    }
    return std::nullopt;
  }

 private:
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

  std::optional<Done> Take(io_uring_cqe* entry) {
    const Done done{io_uring_cqe_get_data64(entry), entry->res};
    io_uring_cqe_seen(&ring_, entry);
    return done.slot == kNoSlot ? std::nullopt : std::optional(done);
  }

  io_uring ring_{};
  bool open_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Ring>> MakeRing(size_t depth) {
  auto ring = std::make_unique<KernelRing>();
  CKPTD_RETURN_IF_ERROR(ring->Open(depth));
  return ring;
}

}  // namespace ckptd
