// Many reads and writes in flight at once. A queue belongs to one thread; file and memory of a request must live until
// its completion was returned. A request completes only when all its bytes were moved, or with an error (a file
// shorter than a read asks is CORRUPT).
//
// Three kinds: io_uring; pwrite/pread on owned worker threads; inline, which runs each request inside Submit and so is
// deterministic (tests, simulator).
#ifndef CKPTD_DAEMON_OS_IO_QUEUE_H_
#define CKPTD_DAEMON_OS_IO_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/os/files.h"

namespace ckptd {

enum class IoDirection { kRead, kWrite };

struct IoRequest {
  IoDirection direction = IoDirection::kRead;
  File* file = nullptr;
  uint64_t offset = 0;
  std::byte* memory = nullptr;  // only read from when writing
  size_t length = 0;            // at most kMaxIoBytes
  uint64_t tag = 0;             // comes back in the completion
};

// Below the kernel's limit of one transfer; callers cut larger ranges, which also gives parallelism.
inline constexpr size_t kMaxIoBytes = size_t{1} << 30;

[[nodiscard]] IoRequest WriteRequest(File& file, uint64_t offset, std::span<const std::byte> bytes, uint64_t tag);
[[nodiscard]] IoRequest ReadRequest(File& file, uint64_t offset, std::span<std::byte> bytes, uint64_t tag);

struct IoCompletion {
  uint64_t tag = 0;
  absl::Status status;
};

class IoQueue {
 public:
  virtual ~IoQueue() = default;  // waits for what is in flight, drops its completions

  // An error only when the request cannot be queued: the queue is full (in_flight() == depth()), or the request is
  // malformed. The transfer's own errors come with its completion.
  [[nodiscard]] virtual absl::Status Submit(const IoRequest& request) = 0;
  // Replaces what `done` holds, keeping its memory: waits until at least one request is complete; empty at once when
  // none is in flight.
  virtual void Wait(std::vector<IoCompletion>& done) = 0;

  [[nodiscard]] virtual size_t in_flight() const = 0;
  [[nodiscard]] virtual size_t depth() const = 0;
  [[nodiscard]] virtual absl::string_view name() const = 0;  // "io_uring", "threads", "inline"
};

enum class IoQueueChoice { kAuto, kUring, kThreads };

// kAuto: io_uring where it works, else threads. kUring where it does not work is an error that says why.
[[nodiscard]] absl::StatusOr<std::unique_ptr<IoQueue>> MakeIoQueue(IoQueueChoice choice, size_t depth);
[[nodiscard]] std::unique_ptr<IoQueue> MakeInlineIoQueue(size_t depth);

// How rooms above get a queue for one piece of work.
using IoQueueFactory = std::function<absl::StatusOr<std::unique_ptr<IoQueue>>()>;
// Queues of MakeIoQueue's kinds; those over threads share one set of workers, made with the first of them and joined
// when factory and queues are gone.
[[nodiscard]] IoQueueFactory MakeIoQueueFactory(IoQueueChoice choice, size_t depth);

// What the kinds share. An error when the request cannot be queued.
[[nodiscard]] absl::Status CheckRequest(const IoRequest& request, size_t in_flight, size_t depth);
// The whole transfer on this thread.
[[nodiscard]] absl::Status TransferNow(const IoRequest& request);

// How far one request of io_uring has come: what to do with the result of one system call.
class IoProgress {
 public:
  IoProgress() = default;
  explicit IoProgress(const IoRequest& request) : request_(request) {}

  // `result`: bytes moved, or -errno. Returns true when the request is complete, false when the rest must be submitted
  // (short transfer, EINTR, EAGAIN).
  [[nodiscard]] absl::StatusOr<bool> Advance(int64_t result);

  [[nodiscard]] const IoRequest& request() const { return request_; }  // the part that is left
  [[nodiscard]] uint64_t tag() const { return request_.tag; }

 private:
  IoRequest request_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_IO_QUEUE_H_
