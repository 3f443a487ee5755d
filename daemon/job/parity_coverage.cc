#include "daemon/job/parity_coverage.h"

#include <algorithm>
#include <utility>

#include "daemon/erasure/rotation.h"
#include "daemon/format/snapshot_ref.h"

namespace ckptd::job {
namespace {

template <typename Refs>
bool AreOf(const Refs& refs, const SnapshotId& id) {
  return std::any_of(refs.begin(), refs.end(), [&](const v1::SnapshotRef& ref) { return ToId(ref) == id; });
}

}  // namespace

ParityCoverage::ParityCoverage(const SnapshotId& id, const std::map<Rank, v1::RankClaim>& claims,
                               std::vector<protect::RankGroup> groups, uint32_t parity, const Rules& rules)
    : id_(id), parity_(parity), rules_(rules) {
  for (const auto& [rank, claim] : claims) {
    if (rank == 0 || rules_.all_ranks_protect) lacking_.insert(rank);
  }
  for (protect::RankGroup& of : groups) {
    Group& group = groups_.emplace_back();
    group.shape = protect::ShapeOf(of.ranks.size(), parity);
    group.missing = static_cast<uint32_t>(of.ranks.size()) * (1 + parity);
    for (const Rank rank : of.ranks) group_of_[rank] = groups_.size() - 1;
    group.of = std::move(of);
  }
}

// The group whose parity this is, made of exactly its ranks and where it should be.
std::optional<size_t> ParityCoverage::Keeps(const std::string& agent, const v1::HeldParity& held) const {
  if (held.ranks().empty() || held.parity() != parity_ || !AreOf(held.complete(), id_)) return std::nullopt;
  const auto found = group_of_.find(held.ranks(0));
  if (found == group_of_.end()) return std::nullopt;
  const Group& group = groups_[found->second];
  const bool same = !rules_.parity_of_these_ranks ||
                    std::equal(held.ranks().begin(), held.ranks().end(), group.of.ranks.begin(), group.of.ranks.end());
  if (!same || !group.shape || held.stripe() >= group.shape->members() || held.row() >= parity_) return std::nullopt;
  const uint32_t holder = erasure::ParityHolder(*group.shape, held.stripe(), held.row());
  if (group.of.agents[holder] != agent && rules_.parity_in_its_place) return std::nullopt;
  return found->second;
}

// Each image and each parity once, however often the REPORT names it.
ParityCoverage::Shares ParityCoverage::SharesOf(const std::string& agent, const v1::Report& report) const {
  Shares shares;
  std::set<Rank> images;
  for (const v1::RankReport& rank : report.ranks()) {
    const auto found = group_of_.find(rank.rank());
    if (found == group_of_.end() || !AreOf(rank.sealed(), id_)) continue;
    const protect::RankGroup& group = groups_[found->second].of;
    const bool in_place = group.agents[*group.PlaceOf(rank.rank())] == agent || !rules_.images_in_their_place;
    if (in_place && images.insert(rank.rank()).second) ++shares[found->second];
  }
  std::set<std::pair<size_t, std::pair<uint32_t, uint32_t>>> blocks;
  for (const v1::HeldParity& held : report.parity()) {
    const auto group = Keeps(agent, held);
    if (group && blocks.insert({*group, {held.stripe(), held.row()}}).second) ++shares[*group];
  }
  return shares;
}

void ParityCoverage::Replace(const std::string& agent, const v1::Report* report) {
  Shares shares = report == nullptr ? Shares() : SharesOf(agent, *report);
  const auto known = shares_.find(agent);
  if (known == shares_.end() ? shares.empty() : shares == known->second) return;
  if (known != shares_.end()) Count(known->second, false);
  Count(shares, true);
  shares_[agent] = std::move(shares);
}

void ParityCoverage::Count(const Shares& shares, bool more) {
  for (const auto& [number, count] : shares) {
    Group& group = groups_[number];
    group.missing = more ? group.missing - count : group.missing + count;
    const bool lacks = group.missing != 0 || !group.shape;
    for (const Rank rank : group.of.ranks) {
      if (!rules_.all_ranks_protect && rank != 0) continue;
      if (lacks) lacking_.insert(rank);
      if (!lacks) lacking_.erase(rank);
    }
  }
}

}  // namespace ckptd::job
