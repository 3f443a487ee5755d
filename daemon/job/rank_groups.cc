#include "daemon/job/rank_groups.h"

#include <algorithm>

namespace ckptd::job {

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
  Groups groups;
  for (const v1::HolderGroup& group : state.groups()) groups.emplace_back(group.agents().begin(), group.agents().end());
  std::map<Rank, std::string> agent_of;
  for (const v1::RankClaim& claim : state.decision().ranks()) agent_of[claim.rank()] = claim.agent();
  return RankGroupsOf(groups, agent_of);
}

std::optional<erasure::Shape> ShapeOf(size_t ranks, uint32_t parity) {
  if (parity == 0 || ranks <= parity || ranks > erasure::kMaxMembers) return std::nullopt;
  return erasure::Shape{static_cast<uint32_t>(ranks) - parity, parity};
}

}  // namespace ckptd::job
