// What survives in memory alone when nodes are lost.
//
// Exactly k of N nodes, each set of k as likely: the sets that are survived are counted. A group of a code with n
// members and m parity survives C(n, j) of its sets of j <= m losses, and none above. A ring of L with m copies
// survives where no m neighbours are lost; with j losses there are
//
//   L / (L - j) * [x^j] (1 + x + ... + x^(m-1))^(L - j)
//
// such sets: the L - j survivors are followed by runs of at most m - 1 losses; L times the runs that begin at a given
// survivor, each set counted once for each of its survivors. Groups are independent, so their counts multiply as
// polynomials in x; the coefficient of x^k over C(N, k) is the answer. All terms are positive, nothing cancels: about
// 15 digits are right.
//
// Gemini (SOSP'23), Theorem and Corollary, and REFT (arXiv 2310.12670), survival probability, are special cases of
// this; the tests compare them, and an enumeration and a simulation that ask each holder set.
//
// Pure. Any thread.
#ifndef CKPTD_DAEMON_PLACEMENT_SURVIVAL_H_
#define CKPTD_DAEMON_PLACEMENT_SURVIVAL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/placement/placement.h"

namespace ckptd::placement {

// That all snapshots survive the loss of exactly `lost` members; 0 only if no set of so many is survived.
// INVALID_ARGUMENT when there are fewer members.
[[nodiscard]] absl::StatusOr<double> SurvivalOfLosses(const Placement& placement, size_t lost);

// That all survive when each member is lost with probability p, independently of the others (REFT's S). A node that
// fails at rate 1 / MTBF is lost within a window T with p = 1 - exp(-T / MTBF). INVALID_ARGUMENT unless 0 <= p <= 1.
[[nodiscard]] absl::StatusOr<double> SurvivalAtProbability(const Placement& placement, double p);

// Those of `lost` whose snapshots are gone with them, in the order of the groups (who lives has its own).
// INVALID_ARGUMENT for a name that the placement does not know.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> Unrecoverable(const Placement& placement,
                                                                     const std::vector<std::string>& lost);

struct Counted {
  uint64_t survived = 0;
  uint64_t total = 0;
  bool operator==(const Counted&) const = default;
};
inline constexpr uint64_t kMaxEnumerated = 50'000'000;

// Every set of `lost` members, one by one. INVALID_ARGUMENT when there are more than kMaxEnumerated.
[[nodiscard]] absl::StatusOr<Counted> EnumerateLosses(const Placement& placement, size_t lost);

// Random sets of `lost` members; the same seed gives the same sets on any machine.
[[nodiscard]] absl::StatusOr<Counted> SimulateLosses(const Placement& placement, size_t lost, uint64_t trials,
                                                     uint64_t seed);

}  // namespace ckptd::placement

#endif  // CKPTD_DAEMON_PLACEMENT_SURVIVAL_H_
