#include "daemon/os/testing/fault_ring.h"

#include <unistd.h>

#include <cerrno>
#include <deque>
#include <map>
#include <utility>

namespace ckptd {
namespace {

class PlainRing final : public Ring {
 public:
  absl::Status Start(const IoRequest& request, uint64_t slot) override {
    const auto offset = static_cast<off_t>(request.offset);
    const ssize_t moved = request.direction == IoDirection::kWrite
                              ? pwrite(request.file->fd(), request.memory, request.length, offset)
                              : pread(request.file->fd(), request.memory, request.length, offset);
    done_.push_back({slot, moved < 0 ? -errno : moved});
    return absl::OkStatus();
  }
  Done Wait() override { return *Poll(); }
  std::optional<Done> Poll() override {
    if (done_.empty()) return std::nullopt;
    const Done first = done_.front();
    done_.pop_front();
    return first;
  }

 private:
  std::deque<Done> done_;
};

class FaultRing final : public Ring {
 public:
  FaultRing(std::unique_ptr<Ring> inner, const RingFault& fault, uint64_t& started)
      : inner_(std::move(inner)), fault_(fault), started_(started) {}

  absl::Status Start(const IoRequest& request, uint64_t slot) override {
    if (++started_ != fault_.at) return inner_->Start(request, slot);
    if (fault_.submit) return FileError(fault_.error, "io_uring submit", request.file->path());
    IoRequest half = request;
    if (half.length >= 2 * kDirectAlignment)
      half.length = half.length / 2 / kDirectAlignment * kDirectAlignment;
    else if (half.length > 1)
      half.length /= 2;
    if (fault_.lies) replaced_[slot] = static_cast<int64_t>(request.length);
    if (!fault_.lies && fault_.error != 0) replaced_[slot] = -fault_.error;
    return inner_->Start(half, slot);
  }
  Done Wait() override { return Replaced(inner_->Wait()); }
  std::optional<Done> Poll() override {
    const std::optional<Done> done = inner_->Poll();
    return done ? std::optional(Replaced(*done)) : done;
  }

 private:
  Done Replaced(Done done) {
    const auto replaced = replaced_.extract(done.slot);
    if (replaced) done.result = replaced.mapped();
    return done;
  }

  const std::unique_ptr<Ring> inner_;
  const RingFault fault_;
  uint64_t& started_;
  std::map<uint64_t, int64_t> replaced_;
};

}  // namespace

std::unique_ptr<Ring> MakeFaultRing(std::unique_ptr<Ring> inner, const RingFault& fault, uint64_t& started) {
  return std::make_unique<FaultRing>(std::move(inner), fault, started);
}

std::unique_ptr<Ring> MakePlainRing() { return std::make_unique<PlainRing>(); }

}  // namespace ckptd
