#include "daemon/transport/sockets/socket_ends.h"

#include <thread>

namespace ckptd::transport {
namespace {

constexpr std::chrono::seconds kPatience{20};

Nanos Now() { return SystemClock().Monotonic(); }

}  // namespace

TestEnd::TestEnd(std::shared_ptr<BulkStream> stream) : stream_(std::move(stream)), wake_(std::make_shared<Wake>()) {
  stream_->Watch([wake = wake_] { wake->Set(); });
}

bool TestEnd::Until(const std::function<bool()>& so) const {
  const Nanos deadline = Now() + kPatience;
  while (!so()) {
    if (Now() >= deadline) return false;
    wake_->WaitUntil(deadline);
  }
  return true;
}

std::optional<Incoming> TestEnd::Next() {
  std::optional<Incoming> came;
  (void)Until([&] {
    absl::StatusOr<std::optional<Incoming>> taken = stream_->Take();
    error_ = taken.status();
    if (taken.ok()) came = *taken;
    return came.has_value() || !error_.ok() || stream_->ended();
  });
  return came;
}

TestDoor::TestDoor(BulkPort& port) : port_(port) {
  port_.Serve([kept = kept_](std::shared_ptr<BulkGuest> guest, const std::string& hello) {
    kept->CountOne();  // before the other end can know
    guest->Answer("answer to " + hello);
    MutexLock lock(kept->mutex);
    kept->guests.push_back(std::move(guest));
    kept->changed.NotifyAll();
  });
}

void TestDoor::Kept::CountOne() {
  MutexLock lock(mutex);
  ++count;
}

size_t TestDoor::Kept::Count() {
  MutexLock lock(mutex);
  return count;
}

std::shared_ptr<BulkGuest> TestDoor::Next() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(kept_->mutex);
  while (kept_->guests.empty()) {
    if (!kept_->changed.WaitUntil(kept_->mutex, deadline)) return nullptr;
  }
  std::shared_ptr<BulkGuest> first = std::move(kept_->guests.front());
  kept_->guests.erase(kept_->guests.begin());
  return first;
}

absl::StatusOr<OpenedBulk> DialNow(BulkPort& port, const BulkAddress& to, const std::string& hello, Nanos patience) {
  struct Result {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::StatusOr<OpenedBulk>> opened CKPTD_GUARDED_BY(mutex);
  };
  const auto result = std::make_shared<Result>();
  port.Dial(to, hello, patience, [result](absl::StatusOr<OpenedBulk> opened) {
    MutexLock lock(result->mutex);
    result->opened = std::move(opened);
    result->changed.NotifyAll();
  });
  MutexLock lock(result->mutex);
  while (!result->opened) result->changed.Wait(result->mutex);
  return *std::move(result->opened);
}

bool Eventually(const std::function<bool()>& so) {
  const Nanos deadline = Now() + kPatience;
  while (!so()) {
    if (Now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

}  // namespace ckptd::transport
