// I9: what was told protected survives the loss of any `copies` - 1 nodes, or of any `parity` nodes of each group. The
// next attempt that is asked for the newest, and hears of every agent in time, takes that step or a newer one. What is
// told as no longer protected is no promise any more, and a roll-back ends it.
//
// Losses count from when the REPORTs that the promise stands on may have been sent: a node may be lost while its last
// REPORT is on its way. Of a step that was given up and made good these are newer than the STATE that gave it up.
#include <algorithm>
#include <bit>

#include "daemon/base/marks.h"
#include "daemon/format/snapshot_ref.h"
#include "tests/protocol/world.h"

namespace ckptd::sim {

void World::NoteLoss(int node) { losses_.push_back(node); }

void World::NoteAttempt(AttemptId attempt) {
  if (copying()) losses_before_[{attempt, 0}] = losses_.size();
}

// I9 speaks of agents that can be reached. What one attempt could not bring, the next one leaves out, whatever is told
// of it in between.
void World::NoteUnreached(int node) {
  promises_.clear();
  unreached_in_.insert(nodes_[node].region.seen);
}

void World::NoteProtection(const v1::State& state) {
  if (!copying() || state.phase() == v1::State::GATHER) return;
  const SnapshotId told = ToId(state.protected_());
  const SnapshotId watermark = ToId(state.watermark());
  losses_before_.insert({{watermark.attempt, watermark.step}, losses_.size()});
  if (told > watermark) Fail("I9", ToString(told) + " is called protected, and is not captured");
  const auto known = promises_.find(state.attempt());
  const SnapshotId given_up = ToId(state.unprotected());
  const uint64_t turns = state.protection_turns();
  if (!IsInForce(told, given_up, turns)) {
    losses_before_good_.insert({{state.attempt(), given_up, turns}, losses_.size()});
    if (known == promises_.end() || told >= known->second.id || known->second.carried) promises_.erase(state.attempt());
    return;
  }
  if (known != promises_.end() && !known->second.carried && told <= known->second.id) {
    if (state.version() % 4 == 0) CheckSurvives(state);
    return;
  }
  // Of a coordinator that restarted it may be what its predecessor said, of groups that are not known here.
  const auto decided = decided_by_.find(state.attempt());
  const bool restarted = decided != decided_by_.end() && decided->second != state.incarnation();
  if (options_.parity != 0 && restarted) return;
  const std::optional<size_t> base = LossesBefore(state);
  if (!base) return;
  promises_[state.attempt()] = {told, *base, false, told_groups_[state.incarnation()]};
  CheckSurvives(state);
  CheckMadeOf(state);
  ++counts_.protections;
  counts_.made_good += told == given_up ? 1 : 0;
  if (options_.faults.lose_node != 0 && strike_at_ == 0) strike_at_ = steps_ + random_.Below(500);
}

// These nodes, as bits, are as many as it was made for; those in no group hold nothing that it stands on.
bool World::MayBeLost(const Promise& promise, uint32_t lost) const {
  if (options_.parity == 0) return static_cast<uint32_t>(std::popcount(lost)) == options_.copies - 1;
  uint32_t grouped = 0;
  for (const auto& group : promise.groups) {
    uint32_t of = 0;
    for (const std::string& agent : group) of |= uint32_t{1} << (agent[0] - 'A');
    if (static_cast<uint32_t>(std::popcount(lost & of)) != options_.parity) return false;
    grouped |= of;
  }
  return (lost | grouped) + 1 == uint32_t{1} << nodes_.size();
}

// Whoever is lost now: by what the nodes really hold. While nobody was, and no later attempt is known.
void World::CheckSurvives(const v1::State& state) {
  const Promise& promise = promises_.at(state.attempt());
  if (!LostSince(promise.base).empty() || store_.Newest() != state.attempt()) return;
  for (uint32_t lost = 0; lost < uint32_t{1} << nodes_.size(); ++lost) {
    if (!MayBeLost(promise, lost)) continue;
    for (Rank rank = 0; rank < options_.ranks; ++rank) {
      if (ImageLeft(rank, promise.id, lost) || CanBeRebuilt(rank, promise.id, lost)) continue;
      return Fail("I9", ToString(promise.id) + " is called protected, and a loss of nodes " + std::to_string(lost) +
                            " (as bits) takes rank " + std::to_string(rank));
    }
  }
}

void World::NoteGroups(const v1::State& state) {
  job::Groups told;
  for (const v1::HolderGroup& group : state.groups()) told.emplace_back(group.agents().begin(), group.agents().end());
  const auto [known, is_new] = told_groups_.try_emplace(state.incarnation(), told);
  counts_.regroups += !is_new && known->second != told ? 1 : 0;
  known->second = std::move(told);
}

// Nothing: it cannot be told.
std::optional<size_t> World::LossesBefore(const v1::State& state) const {
  const SnapshotId told = ToId(state.protected_());
  if (told == ToId(state.unprotected())) {
    const auto at = losses_before_good_.find({state.attempt(), told, state.protection_turns() - 1});
    return at == losses_before_good_.end() ? std::nullopt : std::optional(at->second);
  }
  const bool own = told.attempt == state.attempt();
  const auto at = losses_before_.find(own ? std::pair{told.attempt, told.step} : std::pair{state.attempt(), StepId{0}});
  return at == losses_before_.end() ? std::nullopt : std::optional(at->second);
}

std::set<int> World::LostSince(size_t base) const {
  return {losses_.begin() + static_cast<ptrdiff_t>(base), losses_.end()};
}

// Not more nodes were lost than it was made for.
bool World::Outlived(const Promise& promise) const {
  const std::set<int> lost = LostSince(promise.base);
  if (options_.parity == 0) return lost.size() < options_.copies;
  return std::all_of(promise.groups.begin(), promise.groups.end(), [&](const auto& group) {
    const auto gone = [&](const std::string& agent) { return lost.count(agent[0] - 'A') != 0; };
    return std::count_if(group.begin(), group.end(), gone) <= options_.parity;
  });
}

bool World::EveryoneAnswered(AttemptId attempt, uint64_t incarnation) const {
  const auto answered = answered_in_.find({attempt, incarnation});
  return answered != answered_in_.end() && answered->second.size() == nodes_.size();
}

// What `before` promised to the attempt that follows it; null: nothing that binds it. A coordinator that restarts asks
// anew, and may not see the members that answered the one before.
const World::Promise* World::PromiseTo(AttemptId attempt, uint64_t incarnation,
                                       const v1::DecisionRecord& before) const {
  const auto promise = promises_.find(before.attempt());
  if (promise == promises_.end() || late_decisions_.count(before.attempt()) != 0) return nullptr;
  if (store_.records.at(attempt).want().kind() != v1::Want::NEWEST || !EveryoneAnswered(attempt, incarnation))
    return nullptr;
  if (hasty_.count({attempt, incarnation}) != 0) return nullptr;  // who answers later is heard in vain
  if (unreached_in_.count(before.attempt()) != 0) return nullptr;
  const auto stored = store_.steps.find(promise->second.id);
  if (stored != store_.steps.end() && stored->second.marker != 0) return nullptr;  // its end was wanted
  return Outlived(promise->second) ? &promise->second : nullptr;
}

void World::CheckPromise(const v1::DecisionRecord& decision) {
  if (!copying()) return;
  const auto self = store_.decisions.find(decision.attempt());
  if (self == store_.decisions.begin()) return;
  const v1::DecisionRecord& before = std::prev(self)->second;
  const SnapshotId parent = ToId(decision.parent());
  if (const Promise* promise = PromiseTo(decision.attempt(), decided_by_[decision.attempt()], before)) {
    if (parent < promise->id) {
      Fail("I9", "attempt " + std::to_string(decision.attempt()) + " took " + ToString(parent) + ", and " +
                     ToString(promise->id) + " was protected");
    }
    ++counts_.kept;
    if (!LostSince(promise->base).empty()) ++counts_.survived;
  }
  // Until the attempt says itself what is protected.
  const auto known = promises_.find(before.attempt());
  if (known == promises_.end() || parent < known->second.id) return;
  promises_[decision.attempt()] = {known->second.id, known->second.base, true, known->second.groups};
}

// A restore that is refused has not taken it either. The STATE that says so is repeated: the first one counts.
void World::CheckRefused(const v1::State& state) {
  if (!copying() || state.phase() != v1::State::GATHER || store_.decisions.empty()) return;
  const bool nothing = std::any_of(state.refusals().begin(), state.refusals().end(), [](const v1::Refusal& refusal) {
    return refusal.code() == static_cast<uint32_t>(ErrorCode::RESTORE_FAILED);
  });
  const v1::DecisionRecord* before = store_.NewestDecision();
  if (!nothing || before->attempt() >= state.attempt() || !refused_in_.insert(state.attempt()).second) return;
  if (const Promise* promise = PromiseTo(state.attempt(), state.incarnation(), *before)) {
    Fail("I9", "attempt " + std::to_string(state.attempt()) + " finds nothing, and " + ToString(promise->id) +
                   " was protected");
  }
}

}  // namespace ckptd::sim
