#include "daemon/job/coverage.h"

#include <algorithm>
#include <utility>

#include "daemon/format/snapshot_ref.h"

namespace ckptd::job {
namespace {

template <typename Refs>
bool Has(const Refs& refs, const SnapshotId& id) {
  return std::any_of(refs.begin(), refs.end(), [&](const v1::SnapshotRef& ref) { return ToId(ref) == id; });
}

}  // namespace

Coverage::Coverage(const SnapshotId& id, const std::map<Rank, v1::RankClaim>& claims, uint32_t copies,
                   const Rules& rules)
    : id_(id), copies_(copies), only_others_(rules.only_other_agents_protect) {
  for (const auto& [rank, claim] : claims) {
    if (rank != 0 && !rules.all_ranks_protect) continue;
    parts_.push_back({rank, claim.agent()});
    if (!Enough(parts_.back())) lacking_.insert(lacking_.end(), rank);
  }
}

const Coverage::Part* Coverage::Find(Rank rank) const {
  const auto part = std::lower_bound(parts_.begin(), parts_.end(), rank,
                                     [](const Part& each, Rank wanted) { return each.rank < wanted; });
  return part != parts_.end() && part->rank == rank ? &*part : nullptr;
}

// One for each rank, however often the REPORT names it.
std::vector<Coverage::Share> Coverage::SharesOf(const std::string& agent, const v1::Report& report) const {
  std::vector<Share> named;
  for (const v1::RankReport& rank : report.ranks()) {
    if (Find(rank.rank()) != nullptr && Has(rank.sealed(), id_)) named.push_back({rank.rank(), false, 1});
  }
  for (const v1::HeldCopies& held : report.copies()) {
    const Part* part = Find(held.rank());
    if (part != nullptr && Has(held.complete(), id_)) named.push_back({held.rank(), part->owner != agent, 1});
  }
  std::stable_sort(named.begin(), named.end(), [](const Share& a, const Share& b) { return a.rank < b.rank; });
  std::vector<Share> shares;
  for (const Share& each : named) {
    if (shares.empty() || shares.back().rank != each.rank) shares.push_back({each.rank});
    Share& share = shares.back();
    share.others = share.others || each.others;
    share.places += each.places;
  }
  return shares;
}

void Coverage::Replace(const std::string& agent, const v1::Report* report) {
  std::vector<Share> shares = report == nullptr ? std::vector<Share>() : SharesOf(agent, *report);
  const auto known = shares_.find(agent);
  if (known == shares_.end() ? shares.empty() : shares == known->second) return;
  if (known != shares_.end()) Count(known->second, false);
  Count(shares, true);
  shares_[agent] = std::move(shares);
}

void Coverage::Count(const std::vector<Share>& shares, bool more) {
  for (const Share& share : shares) {
    Part& part = parts_[static_cast<size_t>(Find(share.rank) - parts_.data())];
    const auto count = [more](uint32_t* sum, uint32_t by) { *sum = more ? *sum + by : *sum - by; };
    count(&part.agents, 1);
    count(&part.others, share.others ? 1 : 0);
    count(&part.places, share.places);
    if (Enough(part)) {
      lacking_.erase(share.rank);
    } else {
      lacking_.insert(share.rank);
    }
  }
}

bool Coverage::Enough(const Part& part) const {
  if (!only_others_) return part.places >= copies_;
  return part.agents >= copies_ && part.others >= copies_ - 1;
}

}  // namespace ckptd::job
