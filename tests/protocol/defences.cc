// The second lines of defence, each looked at for itself ("D"). Where one is missing, another rule still stands before
// the invariants I1 to I8, so those need not break; what the rule says must hold all the same.
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "daemon/base/marks.h"
#include "daemon/erasure/rotation.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/job/protection.h"
#include "daemon/job/reports.h"
#include "tests/protocol/world.h"

namespace ckptd::sim {

// Refusal of old STATE: what a region has seen only rises.
void World::CheckSeen(int node, AttemptId attempt) {
  if (attempt < nodes_[node].region.seen) Fail("D", absl::StrCat(AgentName(node), " goes back to attempt ", attempt));
}

// `seen` is persisted before anything that follows from it leaves the agent.
void World::CheckReport(int node, const v1::Report& report) {
  if (report.seen() > nodes_[node].region.seen) {
    Fail("D", absl::StrCat(AgentName(node), " reports under attempt ", report.seen(), ", not yet persisted"));
  }
  if (report.copies_size() + report.parity_size() != 0 && nodes_[node].agent->marks.attempt != report.seen()) {
    Fail("D", absl::StrCat(AgentName(node), " reports copies that are not frozen under attempt ", report.seen()));
  }
  for (const v1::RankReport& rank : report.ranks()) {
    if (rank.gone()) CheckGone(report.seen(), rank.rank());
  }
}

// Of a rank that is gone no process lives that could go on with this attempt.
void World::CheckGone(AttemptId attempt, Rank rank) {
  const auto decision = store_.decisions.find(attempt);
  if (decision == store_.decisions.end()) return Fail("D", "a rank is gone from an attempt without a decision");
  ++counts_.gone;
  for (const v1::RankClaim& claim : decision->second.ranks()) {
    const bool lives =
        claim.rank() == rank && std::any_of(processes_.begin(), processes_.end(), [&](const auto& process) {
          return process->ticket == claim.ticket() && process->life != Life::kDead;
        });
    if (lives) Fail("D", "rank " + std::to_string(rank) + " is told as gone, and lives");
  }
}

// What is protected stays in its slots, until that is over or something newer is protected. (A coordinator that sees it
// go tells that the protection is incomplete, so I9 need not break.)
void World::CheckFreed(int node, const RegionSlot& slot) {
  const Agent& agent = *nodes_[node].agent;
  const bool kept =
      slot.record == agent.protected_ && IsInForce(agent.protected_, agent.unprotected, agent.protection_turns);
  const bool sound = slot.state == SlotStateCode::kSealed && files_[slot.file] == slot.crcs;
  if (kept && sound) Fail("D", AgentName(node) + " gives up " + ToString(slot.record) + ", which is protected");
}

// A fill of a fenced owner is never sealed.
void World::CheckSeal(const snapshot::SealSlot& seal, AttemptId seen) {
  const bool fill = !snapshot::IsFetched(seal.source);
  if (fill && seal.snapshot.attempt < seen)
    Fail("D", ToString(seal.snapshot) + " is sealed under " + std::to_string(seen));
}

// After the decision file: is the attempt still the newest? Otherwise nobody acts upon it.
void World::CheckActedUpon(const v1::State& state) {
  if (state.phase() != v1::State::GATHER && late_decisions_.count(state.attempt()) != 0) {
    Fail("D", "attempt " + std::to_string(state.attempt()) + " was decided when a higher one existed, and goes on");
  }
}

void World::NoteReport(const Agent& coordinator, const v1::Report& report) {
  if (report.answers() != coordinator.incarnation || report.lacks() != 0) return;
  if (copying()) answered_in_[{report.seen(), coordinator.incarnation}].insert(report.agent());
  answered_[coordinator.incarnation].insert(report.agent());
  if (!copying()) return;
  Heard& heard = heard_[{coordinator.incarnation, report.seen()}];
  if (heard.told) heard.since.insert(report.agent());
  Heard::Last& last = heard.last[report.agent()];
  const bool newer = last.incarnation != report.incarnation() || last.seq < report.seq();
  if (heard.told && newer) last = {report.incarnation(), report.seq(), heard.ticks};
  heard.target = std::max(heard.target, ToId(report.protecting()));
}

// A coordinator that finds its attempt decided asks all what they have, before it tells anybody what holds.
void World::CheckSurveyed(const v1::State& state) {
  const bool everybody = !copying() || options_.faults.membership != 0 || state.phase() == v1::State::GATHER;
  const auto decided = decided_by_.find(state.attempt());
  if (everybody || decided == decided_by_.end() || decided->second == state.incarnation()) return;
  const bool answered = answered_[state.incarnation()].size() == nodes_.size();
  if (answered || out_of_patience_.count(state.incarnation()) != 0) return;
  Fail("D", absl::StrCat("attempt ", state.attempt(), " goes on after a restart of ", state.coordinator(),
                         ", which has not asked everybody"));
}

std::vector<protect::RankGroup> World::ToldRankGroups(const v1::State& state) {
  if (options_.parity == 0) return {};
  std::map<Rank, std::string> agent_of;
  for (const v1::RankClaim& claim : store_.decisions.at(state.attempt()).ranks())
    agent_of[claim.rank()] = claim.agent();
  return protect::RankGroupsOf(told_groups_[state.incarnation()], agent_of);
}

// Some rank has too few others to share parity with.
bool World::InSmallGroup(const v1::State& state) {
  const auto groups = ToldRankGroups(state);
  return std::any_of(groups.begin(), groups.end(),
                     [&](const protect::RankGroup& group) { return group.ranks.size() <= options_.parity; });
}

// Parity protects what it was made of, where a loss takes one place of it only. (What ranks left behind where they were
// before may bring a step back all the same, so I9 need not break.)
void World::CheckMadeOf(const v1::State& state) {
  const Promise& promise = promises_.at(state.attempt());
  if (!LostSince(promise.base).empty() || store_.Newest() != state.attempt()) return;
  for (const protect::RankGroup& group : ToldRankGroups(state)) {
    const auto shape = protect::ShapeOf(group.ranks.size(), options_.parity);
    if (!shape)
      return Fail("D", ToString(promise.id) + " is called protected, and a rank has nobody to share parity with");
    for (uint32_t stripe = 0; stripe < shape->members(); ++stripe) {
      for (uint32_t row = 0; row < shape->parity; ++row) {
        const std::string& holder = group.agents[erasure::ParityHolder(*shape, stripe, row)];
        if (ParityAt(nodes_[holder[0] - 'A'], {group.ranks, *shape, stripe, row}, promise.id) != nullptr) continue;
        return Fail("D", ToString(promise.id) + " is called protected, and " + holder + " has no parity of its group");
      }
    }
  }
}

// One is finished before the next is chosen, so that ranks whose copies take longer than the time between two saves
// agree on one; unless it is durable, or somebody is silent or in too small a group, so that it cannot be finished.
void World::CheckTargetEnded(const v1::State& state, const Heard& heard) {
  const SnapshotId before = heard.told_target;
  const SnapshotId ended = std::max({ToId(state.protected_()), ToId(state.durable()), ToId(state.unprotected())});
  if (before.none() || before <= ended || options_.faults.membership != 0 || InSmallGroup(state)) return;
  const bool all = heard.since.size() == nodes_.size() &&
                   std::all_of(heard.last.begin(), heard.last.end(),
                               [&](const auto& last) { return heard.ticks - last.second.tick <= job::kSilent; });
  if (!all) return;
  Fail("D", absl::StrCat(ToString(before), " is not protected yet, and ", ToString(ToId(state.protecting())),
                         " is copied instead"));
}

// What is told outlives the agent that tells it.
void World::CheckKept(const v1::State& state) {
  if (!copying() || state.phase() == v1::State::GATHER || !options_.rules.job.persist_marks) return;
  const KeptMarks& kept = nodes_[state.coordinator()[0] - 'A'].region.marks;
  KeptMarks raised = kept;
  raised.Raise(KeptMarks{state.attempt(), job::MarksOf(state)});
  if (raised != kept) Fail("D", state.coordinator() + " tells marks that it has not kept");
}

// What a predecessor let the owners keep, and may have called protected, is not let go before all of them have spoken.
void World::CheckTarget(const v1::State& state) {
  const auto decision = store_.decisions.find(state.attempt());
  if (!copying() || state.phase() == v1::State::GATHER || decision == store_.decisions.end()) return;
  Heard& heard = heard_[{state.incarnation(), state.attempt()}];
  heard.told = true;
  const SnapshotId target = ToId(state.protecting());
  if (target > heard.told_target && target > heard.target) CheckTargetEnded(state, heard);
  heard.told_target = std::max(heard.told_target, target);
  if (target <= ToId(decision->second.parent()) || target <= heard.target) return;
  const KeptMarks& kept = nodes_[state.coordinator()[0] - 'A'].agent->kept;
  if (kept.attempt == state.attempt() && target <= kept.marks.target) return;
  for (const v1::RankClaim& claim : decision->second.ranks()) {
    if (heard.since.count(claim.agent()) != 0) continue;
    Fail("D", absl::StrCat(ToString(target), " is to be kept instead of what was, and ", claim.agent(),
                           " has not said what that is"));
  }
}

// A coordinator stands on REPORTs that answer it, not one of its name before a restart.
void World::CheckAnswered(const Agent& coordinator, const v1::DecisionRecord& decision) {
  for (const v1::RankClaim& claim : decision.ranks()) {
    if (answered_[coordinator.incarnation].count(claim.agent()) != 0) continue;
    Fail("D", "attempt " + std::to_string(decision.attempt()) + " is decided, and agent " + claim.agent() +
                  " has not answered this coordinator");
  }
}

// A marker is void once a later attempt has chosen the step: it is listed again.
void World::CheckVoidMarkers(const v1::DecisionRecord& decision, const v1::DecisionRecord& before) {
  const SnapshotId chosen = ToId(before.parent());
  const auto step = store_.steps.find(chosen);
  if (chosen.none() || step == store_.steps.end() || !store_.Good(chosen)) return;
  const bool is_void = step->second.marker != 0 && step->second.marker < before.attempt();
  const bool newest = store_.records.at(decision.attempt()).want().kind() == v1::Want::NEWEST;
  if (is_void && newest && ToId(decision.parent()) < chosen) {
    Fail("D", "attempt " + std::to_string(decision.attempt()) + " does not see " + ToString(chosen) +
                  ", whose marker is void");
  }
}

}  // namespace ckptd::sim
