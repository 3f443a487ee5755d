// Inside the room: groups as indices, and the sizes that a scheme wants them to have.
#ifndef CKPTD_DAEMON_PLACEMENT_SEATING_H_
#define CKPTD_DAEMON_PLACEMENT_SEATING_H_

#include <cstddef>
#include <vector>

#include "daemon/placement/placement.h"
#include "daemon/placement/roster.h"
#include "daemon/placement/scheme.h"
#include "daemon/placement/spread.h"

namespace ckptd::placement {

// `groups` groups of `base` members; the largest ones have that many more: extra[0], extra[1], ...
struct Shape {
  size_t groups = 0;
  size_t base = 0;
  std::vector<size_t> extra;
};

// Gemini's Algorithm 1 for group and mixed: N/m groups of m, the last one m + N mod m. Codes: sizes within one, at
// least data + parity. `scheme` was checked against `members`.
[[nodiscard]] Shape ShapeOf(const Scheme& scheme, size_t members);

[[nodiscard]] Placement ToPlacement(const Scheme& scheme, const Roster& roster, const std::vector<Seats>& groups);

}  // namespace ckptd::placement

#endif  // CKPTD_DAEMON_PLACEMENT_SEATING_H_
