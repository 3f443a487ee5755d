#include "daemon/placement/survival.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::placement {
namespace {

// Counts reach C(10000, 5000), about 10^3008: beyond double, within the 15 bits of exponent of x86's and of IEEE quad.
using Real = long double;
static_assert(std::numeric_limits<Real>::max_exponent10 >= 4000);
using Series = std::vector<Real>;  // coefficients, from x^0

Real Binomial(size_t n, size_t k) {
  Real out = 1;
  for (size_t i = 1; i <= std::min(k, n - k); ++i) out = out * static_cast<Real>(n - i + 1) / static_cast<Real>(i);
  return out;
}

// a * b up to x^limit.
Series Multiply(const Series& a, const Series& b, size_t limit) {
  Series out(std::min(limit + 1, a.size() + b.size() - 1));
  for (size_t i = 0; i < out.size(); ++i) {
    const size_t from = i < a.size() ? 0 : i - a.size() + 1;
    for (size_t j = from; j <= std::min(i, b.size() - 1); ++j) out[i] += a[i - j] * b[j];
  }
  return out;
}

// Sets of `lost` of a ring of `length` without `copies` neighbours among them.
Real CountRing(size_t length, size_t copies, size_t lost) {
  if (lost >= length) return 0;
  const Series run(copies, 1);
  Series runs(1, 1);
  for (size_t i = lost; i < length; ++i) runs = Multiply(runs, run, lost);
  return lost < runs.size() ? runs[lost] * static_cast<Real>(length) / static_cast<Real>(length - lost) : 0;
}

Real CountGroup(const Scheme& scheme, size_t size, size_t lost) {
  if (scheme.is_copies()) return CountRing(size, scheme.copies, lost);
  return lost <= scheme.tolerated() ? Binomial(size, lost) : 0;
}

// By the number of losses in the group.
Series GroupSeries(const Scheme& scheme, size_t size, size_t limit) {
  Series out;
  for (size_t lost = 0; lost <= std::min(size, limit); ++lost) out.push_back(CountGroup(scheme, size, lost));
  while (out.size() > 1 && out.back() == 0) out.pop_back();  // so many are never survived: no work for them
  return out;
}

Real CountAll(const Placement& placement, size_t lost) {
  if (placement.groups.size() == 1) return CountGroup(placement.scheme, placement.groups[0].size(), lost);
  std::map<size_t, Series> by_size;
  Series all(1, 1);
  for (const auto& group : placement.groups) {
    auto [series, added] = by_size.try_emplace(group.size());
    if (added) series->second = GroupSeries(placement.scheme, group.size(), lost);
    all = Multiply(all, series->second, lost);
  }
  return lost < all.size() ? all[lost] : 0;
}

// That n in a row have no run of `copies` losses: the first survivor stands behind fewer losses.
std::vector<double> NoRun(size_t n, size_t copies, double p) {
  std::vector<double> out(n + 1, 1);
  for (size_t i = copies; i <= n; ++i) {
    out[i] = 0;
    double lost = 1;
    for (size_t before = 0; before < copies; ++before) {
      out[i] += lost * (1 - p) * out[i - before - 1];
      lost *= p;
    }
  }
  return out;
}

// The ring cut open between two members: t losses before the first and behind the last survivor together, in t + 1
// ways.
double RingAtProbability(size_t length, size_t copies, double p) {
  const std::vector<double> no_run = NoRun(length, copies, p);
  double sum = 0;
  double lost = 1;
  for (size_t t = 0; t < copies; ++t) {
    if (t + 2 <= length) sum += static_cast<double>(t + 1) * (1 - p) * (1 - p) * lost * no_run[length - t - 2];
    if (t + 1 == length) sum += static_cast<double>(length) * (1 - p) * lost;  // one survivor
    lost *= p;
  }
  return sum;
}

double GroupAtProbability(const Scheme& scheme, size_t size, double p) {
  if (scheme.is_copies()) return RingAtProbability(size, scheme.copies, p);
  double sum = 0;
  for (size_t lost = 0; lost <= std::min<size_t>(size, scheme.tolerated()); ++lost) {
    double term = static_cast<double>(Binomial(size, lost));
    for (size_t i = 0; i < size; ++i) term *= i < lost ? p : 1 - p;
    sum += term;
  }
  return sum;
}

}  // namespace

absl::StatusOr<double> SurvivalOfLosses(const Placement& placement, size_t lost) {
  const size_t members = placement.members();
  if (lost > members) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(lost, " losses of ", members, " members"));
  }
  if (lost <= placement.scheme.tolerated()) return 1.0;
  const Real survived = CountAll(placement, lost);
  if (survived == 0) return 0.0;
  const Real share = std::min<Real>(1, survived / Binomial(members, lost));
  return std::max(static_cast<double>(share), std::numeric_limits<double>::min());
}

absl::StatusOr<double> SurvivalAtProbability(const Placement& placement, double p) {
  if (!(p >= 0 && p <= 1)) {
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("a probability is 0 to 1, not ", p));
  }
  std::map<size_t, double> by_size;
  double all = 1;
  for (const auto& group : placement.groups) {
    auto [at, added] = by_size.try_emplace(group.size(), 0);
    if (added) at->second = GroupAtProbability(placement.scheme, group.size(), p);
    all *= at->second;
  }
  return std::min(1.0, all);
}

}  // namespace ckptd::placement
