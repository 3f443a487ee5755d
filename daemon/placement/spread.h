// Failure domains: how members of one holder set are kept apart, and where they could not be.
//
// Dealing, as cards are dealt: the members are put in an order in which every zone is contiguous, in it every rack, in
// it every host, and the p-th goes to group p mod g. A domain of r members then gives each of the g groups r/g of them,
// rounded up or down, at every level at once, and no other partition does better. So no group has two members of a
// domain, if no domain has more than g. Larger domains come first, so that one of exactly g members lies on whole rows:
// laid one group after the other into a ring, its members are as far apart as they can be.
//
// Rings longer than a group (Algorithm 1's last one) are chosen before the rest is dealt, one member at a time, always
// the one that adds fewest pairs in shared domains to the ring and takes most from the rest. The pairs are a sum of
// convex functions of the domains' counts, and the domains are nested, so that this greedy choice is the best.
#ifndef CKPTD_DAEMON_PLACEMENT_SPREAD_H_
#define CKPTD_DAEMON_PLACEMENT_SPREAD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/placement/placement.h"
#include "daemon/placement/roster.h"

namespace ckptd::placement {

// Indices into a Roster.
using Seats = std::vector<uint32_t>;

// The order that is dealt. `seats`: any part of the roster.
[[nodiscard]] Seats DealingOrder(const Roster& roster, Seats seats);
// Into `groups` >= 1 groups; their sizes differ by one at most.
[[nodiscard]] std::vector<Seats> Deal(const Seats& order, size_t groups);
// A ring of `order` in which members of one domain stand `copies` apart where that is possible.
[[nodiscard]] Seats ArrangeRing(const Roster& roster, const Seats& order, size_t copies);
// Those of `order` that should form a ring of `length`, so that the others can be dealt into `groups` >= 1 groups.
[[nodiscard]] Seats ChooseRing(const Roster& roster, const Seats& order, size_t length, size_t groups);

// A domain that has more than one member of a holder set.
struct Shared {
  Level level = Level::kHost;
  std::string domain;                // "zone/rack/host"
  std::vector<std::string> holders;  // the whole set
  std::vector<std::string> inside;   // those in the domain, at least 2
  bool fatal = false;                // when this domain fails, and nothing else, the set's snapshots are lost
};

// All of them, by level (host first), then by holder set. `members` must hold everybody whom the placement seats, with
// labels: INVALID_ARGUMENT naming one who is missing.
[[nodiscard]] absl::StatusOr<std::vector<Shared>> SharedDomains(const Placement& placement,
                                                                const std::vector<Member>& members);

}  // namespace ckptd::placement

#endif  // CKPTD_DAEMON_PLACEMENT_SPREAD_H_
