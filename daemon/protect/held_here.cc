#include "daemon/protect/held_here.h"

#include <algorithm>

#include "daemon/erasure/rotation.h"
#include "daemon/protect/copy_placement.h"
#include "daemon/protect/groups.h"
#include "daemon/protect/parity_piece.h"

namespace ckptd::protect {
namespace {

std::set<std::string> AgentsHeldBy(const std::string& agent, const v1::State& state) {
  const Groups groups = GroupsOf(state);
  std::set<std::string> out;
  for (const std::vector<std::string>& group : groups) {
    if (std::find(group.begin(), group.end(), agent) == group.end()) continue;
    for (const std::string& other : group) {
      const std::vector<std::string> holders = HoldersOf({group}, other, state.copies());
      if (std::find(holders.begin(), holders.end(), agent) != holders.end()) out.insert(other);
    }
  }
  return out;
}

void AddParity(const std::string& agent, const RankGroup& group, uint32_t parity, std::set<region::PeerKey>& out) {
  const auto shape = ShapeOf(group.ranks.size(), parity);
  const auto at = std::find(group.agents.begin(), group.agents.end(), agent);
  if (!shape || at == group.agents.end()) return;
  const auto member = static_cast<uint32_t>(at - group.agents.begin());
  for (uint32_t stripe = 0; stripe < shape->members(); ++stripe) {
    if (erasure::HoldsParity(*shape, stripe, member)) out.insert(ParityPlace{group.ranks, *shape, stripe, 0}.key());
  }
}

}  // namespace

std::set<region::PeerKey> HeldHere(const std::string& agent, const v1::State& state) {
  std::set<region::PeerKey> out;
  const std::set<std::string> held = AgentsHeldBy(agent, state);
  for (const v1::RankClaim& claim : state.decision().ranks()) {
    if (held.count(claim.agent()) != 0) out.insert({region::PeerKind::kCopy, claim.rank()});
  }
  for (const RankGroup& group : RankGroupsOf(state)) AddParity(agent, group, state.parity(), out);
  return out;
}

}  // namespace ckptd::protect
