#include "daemon/transport/token_bucket.h"

#include <algorithm>
#include <cmath>

namespace ckptd::transport {
namespace {

constexpr double kNanosPerSecond = 1e9;
constexpr uint64_t kMost = uint64_t{1} << 40;

}  // namespace

TokenBucket::TokenBucket(uint64_t bytes_per_second, uint64_t burst)
    : rate_(static_cast<double>(std::min(bytes_per_second, kMost)) / kNanosPerSecond),
      burst_(static_cast<double>(std::min(std::max<uint64_t>(burst, 1), kMost))),
      level_(burst_) {}

void TokenBucket::Fill(Nanos now) {
  if (now <= filled_) return;
  level_ = std::min(burst_, level_ + rate_ * static_cast<double>((now - filled_).count()));
  filled_ = now;
}

Nanos TokenBucket::ReadyAt(uint64_t bytes, Nanos now) {
  if (rate_ == 0) return now;
  Fill(now);
  const double missing = std::min(static_cast<double>(bytes), burst_) - level_;
  if (missing <= 0) return now;
  return now + Nanos(static_cast<int64_t>(std::ceil(missing / rate_)));
}

void TokenBucket::Take(uint64_t bytes, Nanos now) {
  if (rate_ == 0) return;
  Fill(now);
  level_ -= static_cast<double>(bytes);
}

}  // namespace ckptd::transport
