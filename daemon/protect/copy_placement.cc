#include "daemon/protect/copy_placement.h"

#include <algorithm>
#include <utility>

#include "daemon/base/log.h"
#include "daemon/placement/placement.h"

namespace ckptd::protect {
namespace {

std::string DomainOf(const membership::Member& member, const char* level) {
  const auto found = member.domains.find(level);
  return found == member.domains.end() ? "" : found->second;
}

// An agent that is no member any more has no domains.
std::vector<placement::Member> WithDomains(const membership::View& view, const std::vector<std::string>& agents) {
  std::vector<placement::Member> members;
  for (const std::string& agent : agents) {
    placement::Member& member = members.emplace_back();
    member.name = agent;
    const membership::Member* known = view.Find(agent);
    if (known == nullptr) continue;
    member.zone = DomainOf(*known, "zone");
    member.rack = DomainOf(*known, "rack");
    member.host = DomainOf(*known, "host");
  }
  return members;
}

Groups PlaceBy(const placement::Scheme& scheme, const membership::View& view, const std::vector<std::string>& agents,
               const Groups& before) {
  const std::vector<placement::Member> members = WithDomains(view, agents);
  auto placed = before.empty() ? placement::Place(scheme, members) : placement::Rearrange({scheme, before}, members);
  if (placed.ok()) return std::move(placed->groups);
  Log(kError, "copies.not_placed").Error(placed.status());
  return {};
}

}  // namespace

Placer PlacerOf(const membership::Membership& membership, uint32_t copies) {
  return [&membership, copies](const std::vector<std::string>& agents, const Groups& before) -> Groups {
    if (agents.size() < copies) return {};
    return PlaceBy(placement::Scheme::Copies(placement::Kind::kMixed, copies), *membership.view(), agents, before);
  };
}

Placer ParityPlacerOf(const membership::Membership& membership, uint64_t data, uint32_t parity) {
  return [&membership, data, parity](const std::vector<std::string>& agents, const Groups& before) {
    if (agents.size() <= parity) return Groups();
    const auto fits = static_cast<uint32_t>(std::min<uint64_t>(data, agents.size() - parity));
    const auto scheme = parity == 1 ? placement::Scheme::Xor(fits) : placement::Scheme::ReedSolomon(fits, parity);
    return PlaceBy(scheme, *membership.view(), agents, before);
  };
}

std::vector<std::string> HoldersOf(const Groups& groups, const std::string& agent, uint32_t copies) {
  for (const std::vector<std::string>& group : groups) {
    const auto at = static_cast<size_t>(std::find(group.begin(), group.end(), agent) - group.begin());
    if (at == group.size()) continue;
    std::vector<std::string> holders;
    for (size_t i = 1; i < copies && i < group.size(); ++i) holders.push_back(group[(at + i) % group.size()]);
    return holders;
  }
  return {};
}

}  // namespace ckptd::protect
