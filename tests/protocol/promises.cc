// I9: what was told protected survives the loss of any `copies` - 1 nodes. The next attempt that is asked for the
// newest, and hears of every agent in time, takes that step or a newer one. What is told as no longer protected is no
// promise any more, and a roll-back ends it.
//
// Losses count from when the REPORTs that the promise stands on may have been sent: a node may be lost while its last
// REPORT is on its way. Of a step that was given up and made good these are newer than the STATE that gave it up.
#include <algorithm>

#include "daemon/base/marks.h"
#include "daemon/format/snapshot_ref.h"
#include "tests/protocol/world.h"

namespace ckptd::sim {

void World::NoteLoss(int node) { losses_.push_back(node); }

void World::NoteAttempt(AttemptId attempt) {
  if (copying()) losses_before_[{attempt, 0}] = losses_.size();
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
  if (known != promises_.end() && !known->second.carried && told <= known->second.id) return;
  const std::optional<size_t> base = LossesBefore(state);
  if (!base) return;
  promises_[state.attempt()] = {told, *base, false};
  ++counts_.protections;
  counts_.made_good += told == given_up ? 1 : 0;
  if (options_.faults.lose_node != 0 && strike_at_ == 0) strike_at_ = steps_ + random_.Below(500);
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

// How many nodes were lost since.
size_t World::LossesSince(size_t base) const {
  const std::set<int> lost(losses_.begin() + static_cast<ptrdiff_t>(base), losses_.end());
  return lost.size();
}

bool World::EveryoneAnswered(AttemptId attempt) const {
  const auto answered = answered_in_.find(attempt);
  return answered != answered_in_.end() && answered->second.size() == nodes_.size();
}

// What `before` promised to the attempt that follows it; null: nothing that binds it.
const World::Promise* World::PromiseTo(AttemptId attempt, const v1::DecisionRecord& before) const {
  const auto promise = promises_.find(before.attempt());
  if (promise == promises_.end() || late_decisions_.count(before.attempt()) != 0) return nullptr;
  if (store_.records.at(attempt).want().kind() != v1::Want::NEWEST || !EveryoneAnswered(attempt)) return nullptr;
  const auto stored = store_.steps.find(promise->second.id);
  if (stored != store_.steps.end() && stored->second.marker != 0) return nullptr;  // its end was wanted
  return LossesSince(promise->second.base) < options_.copies ? &promise->second : nullptr;
}

void World::CheckPromise(const v1::DecisionRecord& decision) {
  if (!copying()) return;
  const auto self = store_.decisions.find(decision.attempt());
  if (self == store_.decisions.begin()) return;
  const v1::DecisionRecord& before = std::prev(self)->second;
  const SnapshotId parent = ToId(decision.parent());
  if (const Promise* promise = PromiseTo(decision.attempt(), before)) {
    if (parent < promise->id) {
      Fail("I9", "attempt " + std::to_string(decision.attempt()) + " took " + ToString(parent) + ", and " +
                     ToString(promise->id) + " was protected");
    }
    ++counts_.kept;
    if (LossesSince(promise->base) != 0) ++counts_.survived;
  }
  // Until the attempt says itself what is protected.
  const auto known = promises_.find(before.attempt());
  if (known == promises_.end() || parent < known->second.id) return;
  promises_[decision.attempt()] = {known->second.id, known->second.base, true};
}

// A restore that is refused has not taken it either. The STATE that says so is repeated: the first one counts.
void World::CheckRefused(const v1::State& state) {
  if (!copying() || state.phase() != v1::State::GATHER || store_.decisions.empty()) return;
  const bool nothing = std::any_of(state.refusals().begin(), state.refusals().end(), [](const v1::Refusal& refusal) {
    return refusal.code() == static_cast<uint32_t>(ErrorCode::RESTORE_FAILED);
  });
  const v1::DecisionRecord* before = store_.NewestDecision();
  if (!nothing || before->attempt() >= state.attempt() || !refused_in_.insert(state.attempt()).second) return;
  if (const Promise* promise = PromiseTo(state.attempt(), *before)) {
    Fail("I9", "attempt " + std::to_string(state.attempt()) + " finds nothing, and " + ToString(promise->id) +
                   " was protected");
  }
}

}  // namespace ckptd::sim
