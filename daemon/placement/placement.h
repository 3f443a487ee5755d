// Who holds what of whom: a partition of the members into groups, in a fixed order within each.
//
//   copies   a group is a ring: member i's snapshot is held by itself and the next copies - 1. In a group of exactly
//            `copies` members all hold each other's
//   codes    a group is the members of one code; the order is that of the code's blocks
//   none     every member is a group of its own
//
// The members that a snapshot depends on are a *holder set*: it survives while not more than scheme.tolerated() of them
// are lost. A set of copies has `copies` members, a set of a code is its group.
//
// Where it comes from: Place() for a job that starts (the same for the same members, in whatever order they are listed)
// and Rearrange() when members change. The second needs the placement before, so whoever decides (the coordinator)
// hands the placement on with the attempt. A function of the membership alone cannot move little: by Ramsey's theorem
// any rule that pairs up every even set of names has, for some names, one exchange of a member that breaks up
// arbitrarily many pairs.
//
// Pure. Any thread.
#ifndef CKPTD_DAEMON_PLACEMENT_PLACEMENT_H_
#define CKPTD_DAEMON_PLACEMENT_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/placement/roster.h"
#include "daemon/placement/scheme.h"

namespace ckptd::placement {

struct Placement {
  Scheme scheme;
  std::vector<std::vector<std::string>> groups;  // names of members
  bool operator==(const Placement&) const = default;
  [[nodiscard]] size_t members() const;
};

// The placement of a job that starts. Members that must not share a domain are apart as far as the numbers allow it:
// spread.h says how, and reports where they are not.
[[nodiscard]] absl::StatusOr<Placement> Place(const Scheme& scheme, const std::vector<Member>& members);

// The placement after a change of members, and which copies or groups stay as they are. A newcomer takes the seat of
// who left where there is one. For one change, of N members and m copies, whatever N is, at most
//
//                          one leaves             one joins     one takes another's place
//   group, mixed: copies   max(3 (m-1), m (m-1))  m^2 - 1       2 (m-1), which is the least possible
//   ring: copies           m - 1                  2 (m-1)       2 (m-1)
//   codes: groups          data + parity          data + parity 1
//
// are new (see MoveBetween). Numbers that change how many groups there are cost the most: there Algorithm 1 makes two
// groups of a ring, or one ring of two groups. It prefers what moves little to what spreads best; Place() anew is the
// other choice. INVALID_ARGUMENT as CheckScheme, or when `before` seats a member twice.
[[nodiscard]] absl::StatusOr<Placement> Rearrange(const Placement& before, const std::vector<Member>& members);

// What has to be sent anew to go from one placement to another, beside what the next save sends anyway.
struct Movement {
  size_t copies = 0;   // (owner, other holder) pairs that were not there
  size_t groups = 0;   // parity groups whose members were not exactly those of one group
  size_t members = 0;  // that were in both, and changed to another parity group
};
[[nodiscard]] Movement MoveBetween(const Placement& before, const Placement& after);

// One member's part.
struct Duties {
  size_t group = 0;                 // index into groups
  size_t position = 0;              // in it
  std::vector<std::string> sends;   // copies: who else holds its snapshot, nearest first. codes: empty
  std::vector<std::string> stores;  // copies: whose snapshots it holds, nearest first. codes: empty
};
// NOT_FOUND when the placement does not know the member.
[[nodiscard]] absl::StatusOr<Duties> DutiesOf(const Placement& placement, absl::string_view member);

// All holder sets, each once: by group, then by the first owner's position.
[[nodiscard]] std::vector<std::vector<std::string>> HolderSets(const Placement& placement);

}  // namespace ckptd::placement

#endif  // CKPTD_DAEMON_PLACEMENT_PLACEMENT_H_
