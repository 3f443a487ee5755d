#include "daemon/transport/ucx/ucx_pair.h"

#include <cstdlib>
#include <iostream>
#include <optional>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/base/mutex.h"

namespace ckptd::transport {
namespace {

// What both ends of a connection count together.
class Faults {
 public:
  explicit Faults(FakeBulkFaults faults) : faults_(std::move(faults)) {}
  void Join(const std::shared_ptr<BulkStream>& end) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ends_.push_back(end);
  }
  // One more frame is to be sent: whether it is.
  [[nodiscard]] bool Pass() CKPTD_EXCLUDES(mutex_) {
    std::vector<std::weak_ptr<BulkStream>> cut;
    bool passes = false;
    {
      MutexLock lock(mutex_);
      ++passed_;
      if (passed_ > faults_.cut_after) cut = ends_;
      passes = passed_ <= faults_.deaf_after;
    }
    for (const auto& weak : cut) {
      if (const auto end = weak.lock()) end->Close(Error(ErrorCode::CANCELLED, "cut by the test"));
    }
    return passes && cut.empty();
  }
  void Damage(std::span<std::byte> bytes) {
    if (!faults_.damage) return;
    std::string data(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    faults_.damage(data);
    std::memcpy(bytes.data(), data.data(), bytes.size());
  }

 private:
  const FakeBulkFaults faults_;
  Mutex mutex_;
  uint64_t passed_ CKPTD_GUARDED_BY(mutex_) = 0;
  std::vector<std::weak_ptr<BulkStream>> ends_ CKPTD_GUARDED_BY(mutex_);
};

class FaultyEnd final : public BulkStream {
 public:
  FaultyEnd(std::shared_ptr<BulkStream> end, std::shared_ptr<Faults> faults)
      : end_(std::move(end)), faults_(std::move(faults)) {}
  void Watch(std::function<void()> changed) override { end_->Watch(std::move(changed)); }
  absl::StatusOr<std::optional<Incoming>> Take() override { return end_->Take(); }
  bool Place(std::span<std::byte> into) override { return end_->Place(into); }
  bool ended() override { return end_->ended(); }
  bool writable() override { return end_->writable(); }
  void Say(const TransferMessage& message) override {
    if (faults_->Pass()) end_->Say(message);
  }
  void SendHeader(const ChunkHeader& header) override {
    if (faults_->Pass()) end_->SendHeader(header);
  }
  absl::Status SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) override {
    if (!faults_->Pass()) return absl::OkStatus();
    return end_->SendData(bytes, [&](std::span<std::byte> into) {
      absl::Status filled = fill(into);
      faults_->Damage(into);
      return filled;
    });
  }
  void EndWrites() override { end_->EndWrites(); }
  void Close(const absl::Status& why) override { end_->Close(why); }
  bool quiet() override { return end_->quiet(); }

 private:
  const std::shared_ptr<BulkStream> end_;
  const std::shared_ptr<Faults> faults_;
};

// The dialled end and the one that came, until both are there.
class Meeting {
 public:
  void Came(std::shared_ptr<BulkStream> end) CKPTD_EXCLUDES(mutex_) { Set(came_, std::move(end)); }
  void Dialled(std::shared_ptr<BulkStream> end) CKPTD_EXCLUDES(mutex_) { Set(dialled_, std::move(end)); }
  [[nodiscard]] FakeBulk::Ends Wait() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (!came_ || !dialled_) changed_.Wait(mutex_);
    return {dialled_, came_};
  }

 private:
  void Set(std::shared_ptr<BulkStream>& place, std::shared_ptr<BulkStream> end) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    place = std::move(end);
    changed_.NotifyAll();
  }
  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<BulkStream> came_;
  std::shared_ptr<BulkStream> dialled_;
};

}  // namespace

std::string TestUcx() {
  const char* const path = std::getenv("CKPTD_TEST_UCX");
  return path == nullptr ? "" : path;
}

std::string WhyNoUcx() {
  UcxPortOptions options;
  options.library = TestUcx();
  options.only_loopback = true;
  const absl::StatusOr<std::unique_ptr<UcxPort>> port = UcxPort::Open(options);
  return port.ok() ? "" : std::string(port.status().message());
}

std::unique_ptr<UcxPort> MustOpenUcx(Nanos hello_patience) {
  UcxPortOptions options;
  options.library = TestUcx();
  options.only_loopback = true;
  options.hello_patience = hello_patience;
  absl::StatusOr<std::unique_ptr<UcxPort>> port = UcxPort::Open(options);
  if (port.ok()) return *std::move(port);
  std::cerr << port.status() << "\n";
  std::abort();
}

FakeBulk::Ends ConnectByUcx(FakeBulkFaults faults) {
  // Gone before UCX's library is, which was there before them.
  static const std::unique_ptr<UcxPort> dials = MustOpenUcx();
  static const std::unique_ptr<UcxPort> serves = MustOpenUcx();
  auto meeting = std::make_shared<Meeting>();
  serves->Serve([meeting](const std::shared_ptr<BulkGuest>& guest, const std::string& hello) {
    guest->Answer(hello);
    meeting->Came(guest);
  });
  dials->Dial("127.0.0.1", serves->port(), "hello", std::chrono::seconds(20),
              [meeting](absl::StatusOr<OpenedBulk> opened) {
                if (!opened.ok()) {
                  std::cerr << opened.status() << "\n";
                  std::abort();
                }
                meeting->Dialled(std::move(opened->stream));
              });
  const auto [a, b] = meeting->Wait();
  auto shared = std::make_shared<Faults>(std::move(faults));
  shared->Join(a);
  shared->Join(b);
  return {std::make_shared<FaultyEnd>(a, shared), std::make_shared<FaultyEnd>(b, shared)};
}

}  // namespace ckptd::transport
