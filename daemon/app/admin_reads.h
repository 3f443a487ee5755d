// Reads of the storage that a command gives up when it hears nothing for too long: it goes on with what memory holds,
// and says what is missing. The read itself ends when the storage answers, on a thread of its own.
#ifndef CKPTD_DAEMON_APP_ADMIN_READS_H_
#define CKPTD_DAEMON_APP_ADMIN_READS_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/base/errors.h"
#include "daemon/base/executor.h"
#include "daemon/base/mutex.h"
#include "daemon/base/status_macros.h"
#include "daemon/storage/store.h"
#include "daemon/storage/store_calls.h"

namespace ckptd {

// Any thread.
class AdminReads {
 public:
  // All outlive it, and `readers` has ended before. `root` as StoreCalls has it.
  AdminReads(const Clock& clock, Store& store, const std::string& root, Executor& readers)
      : calls_(clock, root), store_(MakeWatchedStore(store, calls_, /*awaited=*/false)), readers_(readers) {}

  // What `read` says. STORAGE_HUNG as soon as a call of it, or of another read, has heard nothing for `patience`: as
  // long as that lasts nobody else waits. `read` may then outlive whoever asked: it owns what it uses.
  template <typename T>
  [[nodiscard]] absl::StatusOr<T> Ask(std::function<absl::StatusOr<T>(Store&)> read, Nanos patience) {
    auto answer = std::make_shared<std::optional<absl::StatusOr<T>>>();
    CKPTD_RETURN_IF_ERROR(Heard(patience));
    const bool taken = readers_.Run([this, answer, read = std::move(read)] {
      absl::StatusOr<T> said = read(*store_);
      MutexLock lock(mutex_);
      answer->emplace(std::move(said));
      changed_.NotifyAll();
    });
    if (!taken) return Error(ErrorCode::STORAGE_HUNG, "too much work waits for the storage");
    MutexLock lock(mutex_);
    while (!answer->has_value()) CKPTD_RETURN_IF_ERROR(WaitMore(patience));
    return *std::move(*answer);
  }

  // Whoever waits is let go with CANCELLED.
  void Close() CKPTD_EXCLUDES(mutex_);

 private:
  [[nodiscard]] absl::Status Heard(Nanos patience);
  [[nodiscard]] absl::Status WaitMore(Nanos patience) CKPTD_REQUIRES(mutex_);

  StoreCalls calls_;
  const std::unique_ptr<Store> store_;
  Executor& readers_;
  Mutex mutex_;
  CondVar changed_;
  bool closed_ CKPTD_GUARDED_BY(mutex_) = false;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_ADMIN_READS_H_
