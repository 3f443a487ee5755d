#include "daemon/job/reports.h"

#include <algorithm>
#include <utility>

#include "daemon/format/snapshot_ref.h"

namespace ckptd::job {

bool Names(const google::protobuf::RepeatedPtrField<v1::SnapshotRef>& refs, const SnapshotId& id) {
  return std::any_of(refs.begin(), refs.end(), [&](const v1::SnapshotRef& ref) { return ToId(ref) == id; });
}

void Reports::Clear() {
  by_agent_.clear();
  places_.clear();
  facts_.clear();
  unknown_facts_ = unheard_members_ = 0;
  for (auto& [agent, standing] : standings_) {
    standing.heard = false;
    unheard_members_ += standing.member ? 1 : 0;
    Judge(agent, &standing);
  }
  changed_.clear();  // with what was known of them
}

void Reports::SetMembers(const std::vector<std::string>& members) {
  for (auto& [agent, standing] : standings_) standing.member = false;
  for (const std::string& agent : members) standings_[agent].member = true;
  unheard_members_ = 0;
  for (auto& [agent, standing] : standings_) {
    unheard_members_ += standing.member && !standing.heard ? 1 : 0;
    Judge(agent, &standing);
  }
}

void Reports::Tick() {
  ++tick_;
  for (auto& [agent, standing] : standings_) Judge(agent, &standing);
}

void Reports::Judge(const std::string& agent, Standing* standing) {
  const bool alive = standing->member && standing->heard && tick_ - standing->heard_at <= kSilent;
  if (alive == standing->alive) return;
  standing->alive = alive;
  ++alive_version_;
  changed_.insert(agent);
}

void Reports::Hear(const std::string& agent) {
  Standing& standing = standings_[agent];
  unheard_members_ -= standing.member && !standing.heard ? 1 : 0;
  standing.heard = true;
  standing.lacks = false;
  standing.heard_at = tick_;
  Judge(agent, &standing);
  changed_.insert(agent);
}

bool Reports::Alive(const std::string& agent) const {
  const auto standing = standings_.find(agent);
  return standing != standings_.end() && standing->second.alive;
}

bool Reports::Lacks(const std::string& agent) const {
  const auto standing = standings_.find(agent);
  return standing != standings_.end() && standing->second.lacks;
}

// One that is silent may have started anew.
bool Reports::Completes(const std::string& agent, uint64_t version) const {
  const auto report = by_agent_.find(agent);
  if (report == by_agent_.end() || !report->second->completes() || report->second->heard() < version) return false;
  const Standing& standing = standings_.at(agent);
  return !standing.lacks && tick_ - standing.heard_at <= kSilent;
}

std::set<std::string> Reports::TakeChanged() { return std::exchange(changed_, {}); }

void Reports::Assign(const std::map<Rank, v1::RankClaim>& claims) {
  Clear();
  for (const auto& [rank, claim] : claims) places_.push_back({rank, claim.agent()});
  facts_.assign(places_.size(), nullptr);
  unknown_facts_ = facts_.size();
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
  Hear(report->agent());
  const ReportPtr before = known;  // what facts_ points to lives until they point elsewhere
  known = report;
  if (before) {
    for (const v1::RankReport& rank : before->ranks()) {
      const v1::RankReport** facts = FactsOf(rank.rank(), report->agent());
      if (facts == nullptr || *facts == nullptr) continue;
      *facts = nullptr;
      ++unknown_facts_;
    }
  }
  for (const v1::RankReport& rank : report->ranks()) {
    const v1::RankReport** facts = FactsOf(rank.rank(), report->agent());
    if (facts == nullptr || *facts != nullptr) continue;  // named twice: the first counts
    *facts = &rank;
    --unknown_facts_;
  }
  return true;
}

uint64_t Reports::Silent(const std::string& agent, uint64_t* heard) const {
  const auto report = by_agent_.find(agent);
  if (report == by_agent_.end()) return UINT64_MAX;
  *heard = report->second->heard();
  return tick_ - standings_.at(agent).heard_at;
}

const v1::RankReport* Reports::Facts(Rank rank) const {
  const auto place = std::lower_bound(places_.begin(), places_.end(), rank,
                                      [](const Place& each, Rank wanted) { return each.rank < wanted; });
  if (place == places_.end() || place->rank != rank) return nullptr;
  return facts_[static_cast<size_t>(place - places_.begin())];
}

}  // namespace ckptd::job
