#include "daemon/transport/testing/fake_bulk.h"

#include <algorithm>
#include <cstring>

#include "client/core/copy/crc32c.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMostUnderWay = 4;  // frames

}  // namespace

class FakeBulkEnd final : public BulkStream {
 public:
  FakeBulkEnd(std::shared_ptr<FakeBulk> wire, int side) : wire_(std::move(wire)), side_(side) {}
  ~FakeBulkEnd() override { Close(absl::OkStatus()); }

  void Watch(std::function<void()> changed) override {
    MutexLock lock(wire_->mutex_);
    wire_->sides_[side_].changed = std::move(changed);
  }
  absl::StatusOr<std::optional<Incoming>> Take() override {
    {
      MutexLock lock(wire_->mutex_);
      auto& frames = wire_->sides_[side_].frames;
      if (frames.empty()) return std::nullopt;
      taken_ = std::move(frames.front());
      frames.pop_front();
    }
    wire_->Tell();  // the other may write
    return taken_.what;
  }
  std::optional<uint32_t> Place(std::span<std::byte> into) override {
    std::memcpy(into.data(), taken_.data.data(), into.size());
    return Crc32c(0, into.data(), into.size());
  }
  bool ended() override {
    MutexLock lock(wire_->mutex_);
    return wire_->sides_[side_].over && wire_->sides_[side_].frames.empty();
  }
  bool writable() override {
    MutexLock lock(wire_->mutex_);
    return !wire_->sides_[side_].over && wire_->sides_[1 - side_].frames.size() < kMostUnderWay;
  }
  void Say(const TransferMessage& message) override { wire_->Put(1 - side_, {{message, std::nullopt, 0}, ""}); }
  void SendHeader(const ChunkHeader& header) override { wire_->Put(1 - side_, {{std::nullopt, header, 0}, ""}); }
  absl::Status SendData(size_t bytes, const std::function<absl::Status(std::span<std::byte> into)>& fill) override {
    std::string data(bytes, 0);
    absl::Status filled = fill(std::span<std::byte>(reinterpret_cast<std::byte*>(data.data()), bytes));
    if (filled.ok()) wire_->Put(1 - side_, {{std::nullopt, std::nullopt, bytes}, std::move(data)});
    return filled;
  }
  void EndWrites() override { wire_->EndFor(1 - side_); }
  void Close(const absl::Status&) override {
    wire_->EndFor(0);
    wire_->EndFor(1);
    MutexLock lock(wire_->mutex_);
    wire_->sides_[side_].changed = nullptr;
  }

 private:
  const std::shared_ptr<FakeBulk> wire_;
  const int side_;
  FakeBulk::Frame taken_;
};

FakeBulk::Ends FakeBulk::Connect(FakeBulkFaults faults) {
  const std::shared_ptr<FakeBulk> wire(new FakeBulk(std::move(faults)));
  return {std::make_shared<FakeBulkEnd>(wire, 0), std::make_shared<FakeBulkEnd>(wire, 1)};
}

void FakeBulk::Put(int to, Frame frame) {
  {
    MutexLock lock(mutex_);
    if (frame.what.data != 0 && faults_.damage) faults_.damage(frame.data);
    ++passed_;
    const bool cut = passed_ > faults_.cut_after;
    if (cut) sides_[0].over = sides_[1].over = true;
    if (passed_ <= faults_.deaf_after && !sides_[to].over) sides_[to].frames.push_back(std::move(frame));
  }
  Tell();
}

void FakeBulk::EndFor(int to) {
  {
    MutexLock lock(mutex_);
    sides_[to].over = true;
  }
  Tell();
}

void FakeBulk::Tell() {
  std::function<void()> both[2];
  {
    MutexLock lock(mutex_);
    for (int side : {0, 1}) both[side] = sides_[side].changed;
  }
  for (const auto& changed : both) {
    if (changed) changed();
  }
}

}  // namespace ckptd::transport
