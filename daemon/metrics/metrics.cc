#include "daemon/metrics/metrics.h"

#include <algorithm>

namespace ckptd {

void Counter::RaiseTo(double total) {
  double now = value();
  while (now < total && !value_.compare_exchange_weak(now, total, std::memory_order_relaxed)) {
  }
}

Histogram::Histogram(absl::Span<const double> bounds)
    : bounds_(bounds), counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds.size() + 1)) {}

void Histogram::Observe(double value) {
  // First bound that is not below the value; a NaN goes above the last.
  auto bound = std::find_if(bounds_.begin(), bounds_.end(), [value](double limit) { return value <= limit; });
  counts_[bound - bounds_.begin()].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<uint64_t> Histogram::Counts() const {
  std::vector<uint64_t> counts(bounds_.size() + 1);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = counts_[i].load(std::memory_order_relaxed);
  return counts;
}

}  // namespace ckptd
