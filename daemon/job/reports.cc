#include "daemon/job/reports.h"

#include <algorithm>

namespace ckptd::job {

void Reports::Clear() {
  by_agent_.clear();
  heard_at_.clear();
  places_.clear();
  facts_.clear();
}

void Reports::Assign(const std::map<Rank, v1::RankClaim>& claims) {
  Clear();
  for (const auto& [rank, claim] : claims) places_.push_back({rank, claim.agent()});
  facts_.assign(places_.size(), nullptr);
}

const v1::RankReport** Reports::FactsOf(Rank rank, const std::string& agent) {
  const auto place = std::lower_bound(places_.begin(), places_.end(), rank,
                                      [](const Place& each, Rank wanted) { return each.rank < wanted; });
  const bool its = place != places_.end() && place->rank == rank && place->agent == agent;
  return its ? &facts_[static_cast<size_t>(place - places_.begin())] : nullptr;
}

bool Reports::Take(const ReportPtr& report) {
  ReportPtr& known = by_agent_[report->agent()];
  if (known && known->incarnation() == report->incarnation() && known->seq() >= report->seq()) return false;
  heard_at_[report->agent()] = tick_;
  const ReportPtr before = known;  // what facts_ points to lives until they point elsewhere
  known = report;
  if (before) {
    for (const v1::RankReport& rank : before->ranks()) {
      if (const v1::RankReport** facts = FactsOf(rank.rank(), report->agent())) *facts = nullptr;
    }
  }
  for (const v1::RankReport& rank : report->ranks()) {
    const v1::RankReport** facts = FactsOf(rank.rank(), report->agent());
    if (facts != nullptr && *facts == nullptr) *facts = &rank;  // named twice: the first counts
  }
  return true;
}

uint64_t Reports::Silent(const std::string& agent, uint64_t* heard) const {
  const auto report = by_agent_.find(agent);
  if (report == by_agent_.end()) return UINT64_MAX;
  *heard = report->second->heard();
  return tick_ - heard_at_.at(agent);
}

const v1::RankReport* Reports::Facts(Rank rank) const {
  const auto place = std::lower_bound(places_.begin(), places_.end(), rank,
                                      [](const Place& each, Rank wanted) { return each.rank < wanted; });
  if (place == places_.end() || place->rank != rank) return nullptr;
  return facts_[static_cast<size_t>(place - places_.begin())];
}

}  // namespace ckptd::job
