// Which ranks are the members of one code. Agents that protect each other are a group (State.groups); their first ranks
// are one group of ranks, their second ones another, and so on. So every member of a group of ranks is on another node,
// and each node is in as many codes as it has ranks. Pure functions, any thread.
#ifndef CKPTD_DAEMON_PROTECT_GROUPS_H_
#define CKPTD_DAEMON_PROTECT_GROUPS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "daemon/base/ids.h"
#include "daemon/erasure/code.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::protect {

// Agents that hold copies for each other, or share parity: State.groups.
using Groups = std::vector<std::vector<std::string>>;

[[nodiscard]] Groups GroupsOf(const v1::State& state);

// In the order of the code. agents[i] has ranks[i].
struct RankGroup {
  std::vector<Rank> ranks;
  std::vector<std::string> agents;
  bool operator==(const RankGroup&) const = default;
  // The rank's place in it.
  [[nodiscard]] std::optional<uint32_t> PlaceOf(Rank rank) const;
};

// By group of agents, then by how manieth ranks. Agents that have fewer ranks than others are left out of the later
// ones.
[[nodiscard]] std::vector<RankGroup> RankGroupsOf(const Groups& groups, const std::map<Rank, std::string>& agent_of);

// What STATE says; empty where there is no parity, or no decision yet.
[[nodiscard]] std::vector<RankGroup> RankGroupsOf(const v1::State& state);

// Ranks, in this order, of agents that STATE puts into one group in this order, and its `parity`. What another agent
// says is a group is believed no further; and it costs no look at all ranks.
[[nodiscard]] bool IsGroupIn(const v1::State& state, const std::vector<Rank>& ranks, uint32_t parity);

// The code of a group of so many ranks; nothing when they are too few to have data beside `parity`.
[[nodiscard]] std::optional<erasure::Shape> ShapeOf(size_t ranks, uint32_t parity);

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_GROUPS_H_
