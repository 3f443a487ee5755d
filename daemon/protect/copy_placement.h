// Who holds copies for whom, as room job asks for it: placement over the failure domains that the membership knows.
#ifndef CKPTD_DAEMON_PROTECT_COPY_PLACEMENT_H_
#define CKPTD_DAEMON_PROTECT_COPY_PLACEMENT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "daemon/membership/membership.h"
#include "daemon/protect/groups.h"

namespace ckptd::protect {

using Placer = std::function<Groups(const std::vector<std::string>& agents, const Groups& before)>;

// For job::Config::place: groups in which each snapshot is on `copies` nodes, its own among them; none where the agents
// are fewer than that. `membership` outlives it; it is asked for domains each time.
[[nodiscard]] Placer PlacerOf(const membership::Membership& membership, uint32_t copies);

// The same for parity: groups of data + parity nodes or a few more, or of all where they are fewer; none where there
// would be no data.
[[nodiscard]] Placer ParityPlacerOf(const membership::Membership& membership, uint64_t data, uint32_t parity);

// The next `copies` - 1 agents of the group that `agent` is in; nobody when it is in none.
[[nodiscard]] std::vector<std::string> HoldersOf(const Groups& groups, const std::string& agent, uint32_t copies);

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_PLACEMENT_H_
