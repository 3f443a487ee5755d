#include "daemon/transport/testing/port_pair.h"

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>
#include <vector>

#include "daemon/base/errors.h"
#include "daemon/base/mutex.h"

namespace ckptd::transport {
namespace {

// What both ends of a connection count together. A cut is a flag that each end sees for itself: a stream belongs to one
// thread.
class Faults {
 public:
  explicit Faults(FakeBulkFaults faults) : faults_(std::move(faults)) {}
  void Join(std::function<void()> changed) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    changed_.push_back(std::move(changed));
  }
  // One more frame is to be sent: whether it is.
  [[nodiscard]] bool Pass() CKPTD_EXCLUDES(mutex_) {
    std::vector<std::function<void()>> told;
    bool passes = false;
    {
      MutexLock lock(mutex_);
      ++passed_;
      cut_ = cut_ || passed_ > faults_.cut_after;
      if (cut_) told = changed_;
      passes = !cut_ && passed_ <= faults_.deaf_after;
    }
    for (const auto& changed : told) changed();
    return passes;
  }
  [[nodiscard]] bool cut() CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return cut_;
  }
  [[nodiscard]] bool damages() const { return faults_.damage != nullptr; }
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
  bool cut_ CKPTD_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> changed_ CKPTD_GUARDED_BY(mutex_);
};

class FaultyEnd final : public BulkStream {
 public:
  FaultyEnd(std::shared_ptr<BulkStream> end, std::shared_ptr<Faults> faults)
      : end_(std::move(end)), faults_(std::move(faults)) {}
  void Watch(std::function<void()> changed) override {
    faults_->Join(changed);
    end_->Watch(std::move(changed));
  }
  absl::StatusOr<std::optional<Incoming>> Take() override {
    if (faults_->cut()) return std::nullopt;
    return end_->Take();
  }
  std::optional<uint32_t> Place(std::span<std::byte> into) override { return end_->Place(into); }
  bool ended() override { return faults_->cut() || end_->ended(); }
  bool writable() override { return !faults_->cut() && end_->writable(); }
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
  bool sends_files() const override { return end_->sends_files() && !faults_->damages(); }
  absl::Status SendFile(size_t bytes, const FilePlace& from) override {
    return faults_->Pass() ? end_->SendFile(bytes, from) : absl::OkStatus();
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
    return {std::move(dialled_), std::move(came_)};
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

FakeBulk::Ends ConnectPorts(BulkPort& dials, BulkPort& serves, const std::string& peer, FakeBulkFaults faults) {
  auto meeting = std::make_shared<Meeting>();
  serves.Serve([meeting](std::shared_ptr<BulkGuest> guest, const std::string& hello) {
    guest->Answer(hello);
    meeting->Came(std::move(guest));
  });
  dials.Dial({peer, "127.0.0.1", serves.port()}, "hello", std::chrono::seconds(20),
             [meeting](absl::StatusOr<OpenedBulk> opened) {
               if (!opened.ok()) {
                 std::cerr << opened.status() << "\n";
                 std::abort();
               }
               meeting->Dialled(std::move(opened->stream));
             });
  auto [a, b] = meeting->Wait();
  auto shared = std::make_shared<Faults>(std::move(faults));
  return {std::make_shared<FaultyEnd>(std::move(a), shared), std::make_shared<FaultyEnd>(std::move(b), shared)};
}

}  // namespace ckptd::transport
