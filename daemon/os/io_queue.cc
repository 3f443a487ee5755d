#include "daemon/os/io_queue.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/thread_queue.h"
#include "daemon/os/uring_queue.h"

namespace ckptd {
namespace {

constexpr size_t kMostWorkers = 4;
constexpr size_t kMostRequests = 1 << 16;  // above what the queues of one store have in flight together

// Threads that are started by the first queue that needs them.
class SharedWorkers {
 public:
  explicit SharedWorkers(size_t threads) : threads_(threads) {}

  std::shared_ptr<ThreadPool> Get() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (pool_ == nullptr) pool_ = std::make_shared<ThreadPool>("ckptd-io", threads_, kMostRequests);
    return pool_;
  }

 private:
  const size_t threads_;
  Mutex mutex_;
  std::shared_ptr<ThreadPool> pool_ CKPTD_GUARDED_BY(mutex_);
};

class InlineQueue final : public IoQueue {
 public:
  explicit InlineQueue(size_t depth) : depth_(depth) {}

  absl::Status Submit(const IoRequest& request) override {
    CKPTD_RETURN_IF_ERROR(CheckRequest(request, done_.size(), depth_));
    done_.push_back({request.tag, TransferNow(request)});
    return absl::OkStatus();
  }

  void Wait(std::vector<IoCompletion>& done) override {
    done.clear();
    done.swap(done_);
  }
  size_t in_flight() const override { return done_.size(); }
  size_t depth() const override { return depth_; }
  absl::string_view name() const override { return "inline"; }

 private:
  const size_t depth_;
  std::vector<IoCompletion> done_;
};

}  // namespace

IoRequest WriteRequest(File& file, uint64_t offset, std::span<const std::byte> bytes, uint64_t tag) {
  // One request type for both directions, as in every kernel interface; a write only reads through this pointer.
  return {IoDirection::kWrite, &file, offset, const_cast<std::byte*>(bytes.data()), bytes.size(), tag};
}

IoRequest ReadRequest(File& file, uint64_t offset, std::span<std::byte> bytes, uint64_t tag) {
  return {IoDirection::kRead, &file, offset, bytes.data(), bytes.size(), tag};
}

absl::Status CheckRequest(const IoRequest& request, size_t in_flight, size_t depth) {
  if (in_flight >= depth) return Error(ErrorCode::BUSY, absl::StrCat("I/O queue: all ", depth, " requests in flight"));
  if (request.file == nullptr || request.length == 0 || request.length > kMaxIoBytes) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("I/O queue: request of ", request.length, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status TransferNow(const IoRequest& request) {
  CKPTD_RETURN_IF_ERROR(CKPTD_FP_STATUS("io_queue.transfer"));
  if (request.direction == IoDirection::kWrite) {
    return request.file->PWrite(request.offset, {request.memory, request.length});
  }
  CKPTD_ASSIGN_OR_RETURN(size_t got, request.file->PRead(request.offset, {request.memory, request.length}));
  if (got == request.length) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT, absl::StrCat("read ", request.file->path(), ": ends at byte ", request.offset + got,
                                                ", ", request.length - got, " bytes before the end of what was asked"));
}

absl::StatusOr<bool> IoProgress::Advance(int64_t result) {
  const bool writing = request_.direction == IoDirection::kWrite;
  if (result == -EINTR || result == -EAGAIN) return false;
  if (result < 0) return FileError(static_cast<int>(-result), writing ? "write" : "read", request_.file->path());
  if (result == 0 && writing) {
    return Error(ErrorCode::STORAGE_IO, absl::StrCat("write ", request_.file->path(), ": the storage took no bytes"));
  }
  if (result == 0) {
    return Error(ErrorCode::CORRUPT, absl::StrCat("read ", request_.file->path(), ": ends at byte ", request_.offset,
                                                  ", ", request_.length, " bytes before the end of what was asked"));
  }
  const size_t moved = static_cast<size_t>(result);
  if (moved > request_.length) return Error(ErrorCode::INTERNAL, "I/O queue: more bytes moved than asked");
  request_.offset += moved;
  request_.memory += moved;
  request_.length -= moved;
  return request_.length == 0;
}

absl::StatusOr<std::unique_ptr<IoQueue>> MakeIoQueue(IoQueueChoice choice, size_t depth) {
  return MakeIoQueueFactory(choice, depth)();
}

IoQueueFactory MakeIoQueueFactory(IoQueueChoice choice, size_t depth) {
  auto workers = std::make_shared<SharedWorkers>(std::min(depth, kMostWorkers));
  return [choice, depth, workers]() -> absl::StatusOr<std::unique_ptr<IoQueue>> {
    if (choice == IoQueueChoice::kThreads) return MakeThreadQueue(depth, workers->Get());
    absl::StatusOr<std::unique_ptr<IoQueue>> uring = MakeUringQueue(depth);
    if (uring.ok() || choice == IoQueueChoice::kUring) return uring;
    return MakeThreadQueue(depth, workers->Get());
  };
}

std::unique_ptr<IoQueue> MakeInlineIoQueue(size_t depth) { return std::make_unique<InlineQueue>(depth); }

}  // namespace ckptd
