#include "daemon/protect/groups.h"

#include <algorithm>

namespace ckptd::protect {

Groups GroupsOf(const v1::State& state) {
  Groups groups;
  for (const v1::HolderGroup& group : state.groups()) groups.emplace_back(group.agents().begin(), group.agents().end());
  return groups;
}

std::optional<uint32_t> RankGroup::PlaceOf(Rank rank) const {
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) return std::nullopt;
  return static_cast<uint32_t>(at - ranks.begin());
}

std::vector<RankGroup> RankGroupsOf(const Groups& groups, const std::map<Rank, std::string>& agent_of) {
  std::map<std::string, std::vector<Rank>> ranks_of;
  for (const auto& [rank, agent] : agent_of) ranks_of[agent].push_back(rank);
  std::vector<RankGroup> out;
  for (const std::vector<std::string>& agents : groups) {
    for (size_t turn = 0;; ++turn) {
      RankGroup group;
      for (const std::string& agent : agents) {
        const std::vector<Rank>& ranks = ranks_of[agent];
        if (turn >= ranks.size()) continue;
        group.ranks.push_back(ranks[turn]);
        group.agents.push_back(agent);
      }
      if (group.ranks.empty()) break;
      out.push_back(std::move(group));
    }
  }
  return out;
}

std::vector<RankGroup> RankGroupsOf(const v1::State& state) {
  if (state.parity() == 0 || !state.has_decision()) return {};
  std::map<Rank, std::string> agent_of;
  for (const v1::RankClaim& claim : state.decision().ranks()) agent_of[claim.rank()] = claim.agent();
  return RankGroupsOf(GroupsOf(state), agent_of);
}

bool IsGroupIn(const v1::State& state, const std::vector<Rank>& ranks, uint32_t parity) {
  if (state.parity() == 0 || state.parity() != parity || ranks.empty()) return false;
  const auto& claims = state.decision().ranks();  // by rank, one for each
  std::vector<std::string> agents;
  for (const Rank rank : ranks) {
    const bool is = rank < static_cast<uint32_t>(claims.size()) && claims[static_cast<int>(rank)].rank() == rank;
    if (!is) return false;
    agents.push_back(claims[static_cast<int>(rank)].agent());
  }
  return std::any_of(state.groups().begin(), state.groups().end(), [&](const v1::HolderGroup& group) {
    auto at = group.agents().begin();
    for (const std::string& agent : agents) {
      at = std::find(at, group.agents().end(), agent);
      if (at == group.agents().end()) return false;
      ++at;
    }
    return true;
  });
}

std::optional<erasure::Shape> ShapeOf(size_t ranks, uint32_t parity) {
  if (parity == 0 || ranks <= parity || ranks > erasure::kMaxMembers) return std::nullopt;
  return erasure::Shape{static_cast<uint32_t>(ranks) - parity, parity};
}

}  // namespace ckptd::protect
