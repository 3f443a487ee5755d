// Counters, gauges and histograms, kept in memory and shown by text.h. Updating one is a few atomic instructions, from
// any thread; finding one by its labels takes a lock, so whoever updates often keeps the reference, which stays valid
// as long as the registry, but for what Retain and Release take away. Relaxed order throughout: a scrape may see two
// metrics at slightly different moments.
#ifndef CKPTD_DAEMON_METRICS_METRICS_H_
#define CKPTD_DAEMON_METRICS_METRICS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/base/mutex.h"

namespace ckptd {

// Only grows. Exact up to 2^53.
class Counter {
 public:
  void Add(double amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  // For totals that somebody else counts. A smaller value is ignored.
  void RaiseTo(double total);
  [[nodiscard]] double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  [[nodiscard]] double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

// Counts observations by upper bound. Bounds are ascending; one bucket above the last is implied.
class Histogram {
 public:
  explicit Histogram(absl::Span<const double> bounds);  // `bounds` outlives the histogram
  void Observe(double value);

  [[nodiscard]] absl::Span<const double> bounds() const { return bounds_; }
  [[nodiscard]] std::vector<uint64_t> Counts() const;  // one more than bounds; not cumulative
  [[nodiscard]] double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const absl::Span<const double> bounds_;
  std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

using LabelValues = std::vector<std::string>;

// What text.h needs to know of a family, whatever it holds.
struct FamilyInfo {
  const char* name;                 // "ckptd_saves_total"
  const char* help;                 // one sentence
  std::vector<const char*> labels;  // names
};

// All series of one name: one metric for each combination of label values. At most kMaxSeries; what comes later is
// counted in one series whose labels are all "other", so that a flood of job names costs bounded memory.
template <typename Metric>
class Family {
 public:
  static constexpr size_t kMaxSeries = 1000;
  using Make = std::function<std::unique_ptr<Metric>()>;

  Family(FamilyInfo info, Make make) : info_(std::move(info)), make_(std::move(make)) {}
  explicit Family(FamilyInfo info) : Family(std::move(info), [] { return std::make_unique<Metric>(); }) {}

  // `values` as many as the family has labels. Makes the series, at zero, when it is new.
  [[nodiscard]] Metric& With(LabelValues values) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    values.resize(info_.labels.size());
    auto found = series_.find(values);
    if (found == series_.end() && series_.size() >= kMaxSeries) values.assign(values.size(), "other");
    std::unique_ptr<Metric>& metric = series_[values];
    if (metric == nullptr) metric = make_();
    return *metric;
  }

  // Takes away the series that `keep` does not want. Only for families whose metrics nobody keeps a reference to.
  void Retain(const std::function<bool(const LabelValues&)>& keep) CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::erase_if(series_, [&](const auto& entry) { return !keep(entry.first); });
  }

  // Takes away the series whose label `name` is `value`: nobody keeps a reference to them any more. What counts for all
  // that came too late stays: others may count there too.
  void Release(absl::string_view name, absl::string_view value) CKPTD_EXCLUDES(mutex_) {
    const auto label = std::find(info_.labels.begin(), info_.labels.end(), name);
    if (label == info_.labels.end()) return;
    const auto index = static_cast<size_t>(label - info_.labels.begin());
    const LabelValues others(info_.labels.size(), "other");
    Retain([&](const LabelValues& values) { return values[index] != value || values == others; });
  }

  // In order of label values. The lock is held meanwhile: `visit` must not call With.
  void ForEach(const std::function<void(const LabelValues&, const Metric&)>& visit) const CKPTD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const auto& [values, metric] : series_) visit(values, *metric);
  }

  [[nodiscard]] const FamilyInfo& info() const { return info_; }

 private:
  const FamilyInfo info_;
  const Make make_;
  mutable Mutex mutex_;
  std::map<LabelValues, std::unique_ptr<Metric>> series_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_METRICS_METRICS_H_
