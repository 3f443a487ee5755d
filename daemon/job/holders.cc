// Copies on other agents: who holds for whom, who has what, and what of it is protected.
#include <algorithm>
#include <set>
#include <utility>

#include "daemon/format/snapshot_ref.h"
#include "daemon/job/coordinator.h"

namespace ckptd::job {
namespace {

std::set<std::string> AgentsOf(const Groups& groups) {
  std::set<std::string> agents;
  for (const auto& group : groups) agents.insert(group.begin(), group.end());
  return agents;
}

}  // namespace

// Where another agent coordinated the attempt before.
void Coordinator::RememberGroups(const v1::State& before) {
  if (before.groups().empty()) return;
  groups_.clear();
  for (const v1::HolderGroup& group : before.groups())
    groups_.emplace_back(group.agents().begin(), group.agents().end());
}

// The agents of the ranks; where they are too few, all members. Those who were placed in this attempt stay, so that a
// rank's agent that comes back moves little: also while they are no members, until they are silent for long. After an
// etcd that was cut off all come back one by one, with all that they hold. Where too few are left, the groups stay too.
void Coordinator::PlaceHolders(bool anew) {
  if (!context_.config.copying()) return;
  holders_missing_.reset();
  const std::set<std::string> members(context_.config.members.begin(), context_.config.members.end());
  std::set<std::string> agents;
  for (const auto& [rank, claim] : claims_) agents.insert(claim.agent());
  if (!anew) agents.merge(AgentsOf(groups_));
  std::erase_if(agents, [&](const std::string& agent) { return members.count(agent) == 0 && SilentForLong(agent); });
  if (agents.size() < context_.config.fewest_nodes()) agents = members;
  LeaveOutSilent(members, &agents);
  if (!anew && agents == AgentsOf(groups_)) return;
  Groups placed = context_.config.place({agents.begin(), agents.end()}, groups_);
  if (!anew && placed.empty()) return;
  groups_ = std::move(placed);
  GroupRanks();
  dirty_ = choice_dirty_ = true;
}

void Coordinator::GroupRanks() {
  rank_groups_.clear();
  if (context_.config.rules.regrouping_covers_anew) protection_.Regrouped();
  if (context_.config.parity == 0) return;
  std::map<Rank, std::string> agent_of;
  for (const auto& [rank, claim] : claims_) agent_of[rank] = claim.agent();
  rank_groups_ = protect::RankGroupsOf(groups_, agent_of);
}

// What all agents said; nobody is lost as far as that goes.
Holdings Coordinator::Stock() const {
  return {reports_.by_agent(),    claims_,      context_.config.copies, [](const std::string&) { return true; },
          context_.config.parity, &rank_groups_};
}

bool Coordinator::SilentForLong(const std::string& agent) const {
  uint64_t heard = 0;
  return ticks_ > kSilentForLong && reports_.Silent(agent, &heard) > kSilentForLong;
}

// Not every membership notices who is gone, and a job may stand still: then nobody would ever hold in its place. Where
// too few are left, all stay: they may come back.
void Coordinator::LeaveOutSilent(const std::set<std::string>& members, std::set<std::string>* agents) const {
  // A group of parity without one of its owners protects no fewer: it waits for its own.
  if (context_.config.parity != 0) return;
  const auto silent = [this](const std::string& agent) { return SilentForLong(agent); };
  std::set<std::string> left = *agents;
  if (std::erase_if(left, silent) == 0) return;
  if (left.size() < context_.config.copies) {
    left = members;
    std::erase_if(left, silent);
  }
  if (left.size() >= context_.config.copies) *agents = std::move(left);
}

void Coordinator::MembersChanged() {
  reports_.SetMembers(context_.config.members);
  const bool decided = (phase_ == Phase::kLoad || phase_ == Phase::kRun) && !surveying_;
  if (decided) PlaceHolders(false);
}

// A coordinator that restarted does not know what the agents have, and some may not have heard the decision yet: they
// still keep everything. So it asks like one that has to decide, before it tells.
bool Coordinator::NeedsSurvey() {
  if (!context_.config.copying() || !adopted_ || surveying_) return false;
  if (!context_.config.rules.survey_after_restart) return false;
  surveying_ = true;
  gather_over_ = false;
  reports_.Clear();
  context_.Emit(StartTimer{TimerKind::kDecide, attempt_, context_.config.decide_timeout});
  dirty_ = true;
  return true;
}

// What the REPORTs of GATHER say, before they are void.
void Coordinator::TakeStock() {
  sources_.clear();
  surveying_ = false;
  ticks_ = 0;
  if (!context_.config.copying()) return;
  const SnapshotId parent = ToId(decision_.parent());
  PlaceHolders(true);
  const Holdings holdings = Stock();
  sources_ = SourcesOf(holdings, parent, context_.config.rules);
  protection_.Reset(parent, StillProtected(holdings, decision_, context_.config.rules));
  LearnMarks(member_.MarksIn(attempt_));  // its own REPORT may be late
  for (const auto& [agent, report] : reports_.by_agent()) {
    grants_.Raise(ToId(report->watermark()), report->floor());
    LearnMarks(MarksOf(*report));
  }
}

// Both of what is protected and what is copied next were W.
void Coordinator::LearnMarks(const ProtectionMarks& marks) {
  protection_.Raise(marks);
  grants_.Raise(std::max(marks.complete, marks.target), 0);
}

// Some rank's agent has no full group of living agents that could hold its copies; or, with parity, the rank is in a
// group of too few ranks: its agent has more of them than the others.
bool Coordinator::HoldersMissing() const {
  const bool small = std::any_of(rank_groups_.begin(), rank_groups_.end(), [&](const protect::RankGroup& group) {
    return !protect::ShapeOf(group.ranks.size(), context_.config.parity);
  });
  if (small && context_.config.rules.small_groups_are_hopeless) return true;
  std::set<std::string> held;
  for (const auto& group : groups_) {
    const bool whole =
        group.size() >= context_.config.fewest_nodes() &&
        std::all_of(group.begin(), group.end(), [&](const std::string& agent) { return reports_.Alive(agent); });
    if (whole) held.insert(group.begin(), group.end());
  }
  return std::any_of(claims_.begin(), claims_.end(),
                     [&](const auto& claim) { return held.count(claim.second.agent()) == 0; });
}

bool Coordinator::Hopeless() {
  const uint64_t version = reports_.alive_version();
  if (!holders_missing_ || holders_missing_->first != version) holders_missing_ = {version, HoldersMissing()};
  return holders_missing_->second;
}

void Coordinator::UpdateProtection() {
  if (!context_.config.copying()) return;
  Holdings holdings = Stock();
  holdings.counts = [this](const std::string& agent) { return reports_.Alive(agent); };
  if (context_.config.rules.holders_know_target) {
    holdings.knows = [this](const std::string& agent) {
      uint64_t heard = 0;
      return reports_.Silent(agent, &heard) != UINT64_MAX && heard >= told_marks_;
    };
  }
  for (const std::string& agent : reports_.TakeChanged()) protection_.Heard(holdings, agent);
  Protection::Facts facts;
  facts.watermark = grants_.watermark();
  facts.durable = committer_.durable();
  facts.owners_reported = reports_.AllFacts();
  facts.settled = ticks_ > kSilent || reports_.AllMembersReported();
  facts.hopeless = Hopeless();
  if (protection_.Update(holdings, facts, context_.config.rules)) dirty_ = true;
}

// What changes seldom, and is long.
void Coordinator::PublishChoice(v1::State* state) const {
  *state->mutable_decision() = decision_;
  if (!context_.config.copying()) return;
  for (const auto& group : groups_) state->add_groups()->mutable_agents()->Assign(group.begin(), group.end());
  if (phase_ == Phase::kLoad) state->mutable_sources()->Assign(sources_.begin(), sources_.end());
}

void Coordinator::PublishProtection(v1::State* state) {
  if (!context_.config.copying()) return;
  if (context_.config.parity == 0) state->set_copies(context_.config.copies);
  state->set_parity(context_.config.parity);
  const ProtectionMarks& marks = protection_.marks();
  const KeptMarks kept{attempt_, marks};  // what the attempt before told says nothing of this one
  if (std::exchange(kept_, kept) != kept && context_.config.rules.persist_marks) context_.Emit(PersistMarks{kept});
  told_.complete = marks.complete;
  if (marks != told_) {
    told_marks_ = version_;
    protection_.Told();
  }
  told_ = marks;
  SetRef(marks.complete, state->mutable_protected_());
  SetRef(marks.target, state->mutable_protecting());
  SetRef(marks.given_up, state->mutable_unprotected());
  state->set_protection_turns(marks.turns);
}

void Coordinator::FillProtection(View* view) const {
  if (!context_.config.copying()) return;
  if (context_.config.parity == 0) view->copies = context_.config.copies;
  view->parity = context_.config.parity;
  view->groups = groups_;
  view->protected_ = protection_.marks().complete;
  view->protected_now = protection_.now();
  view->protecting = protection_.marks().target;
  for (const Rank rank : protection_.lacking()) {
    if (view->unprotected.size() == kMaxUnprotected) break;
    view->unprotected.push_back(rank);
  }
}

}  // namespace ckptd::job
