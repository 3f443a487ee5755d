#include "daemon/job/prover.h"

#include <algorithm>
#include <string>

#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"

namespace ckptd::job {
namespace {

std::set<Rank> AskedOf(const std::string& agent, const v1::State& state) {
  const v1::ToProve& wanted = state.to_prove();
  const std::set<Rank> others(wanted.others().begin(), wanted.others().end());
  std::set<Rank> ranks;
  if (state.coordinator() == agent) ranks = others;
  for (const v1::RankClaim& claim : state.decision().ranks()) {
    if (claim.agent() == agent && others.count(claim.rank()) == 0) ranks.insert(claim.rank());
  }
  std::erase_if(ranks, [&](Rank rank) { return rank >= wanted.world_size(); });
  return ranks;
}

bool Damage(const absl::Status& status) { return CodeOf(status) == ErrorCode::CORRUPT; }

}  // namespace

void Prover::Follow(const v1::State& state) {
  if (!state.has_to_prove()) {
    asked_.clear();
    return End();
  }
  Begin(ToId(state.to_prove().step()), state.attempt());
  world_size_ = state.to_prove().world_size();
  asked_ = AskedOf(context_.config.agent, state);
  if (asked_.count(reading_) == 0) End();
  Next();
}

void Prover::Begin(const SnapshotId& step, AttemptId attempt) {
  if (step != step_ || attempt != attempt_) bad_.clear();
  attempt_ = attempt;
  if (step == step_) return;
  End();
  right_.clear();
  step_ = step;
}

void Prover::Next() {
  if (op_ != 0) return;
  const auto next = std::find_if(asked_.begin(), asked_.end(),
                                 [&](Rank rank) { return right_.count(rank) == 0 && bad_.count(rank) == 0; });
  if (next == asked_.end()) return;
  VerifyRank request;
  request.id = step_;
  request.rank = reading_ = *next;
  request.world_size = world_size_;
  op_ = context_.Request(request);
}

bool Prover::On(const RankVerified& event) {
  if (event.op != op_ || op_ == 0) return false;
  op_ = 0;
  if (event.status.ok()) {
    right_.insert(reading_);
  } else {
    bad_[reading_] = event.status;
    if (!Damage(event.status) && !rests_) {
      rests_ = true;
      context_.Emit(StartTimer{TimerKind::kProve, 0, context_.config.retry});
    }
  }
  Next();
  return true;
}

void Prover::Rested() {
  rests_ = false;
  std::erase_if(bad_, [](const auto& bad) { return !Damage(bad.second); });
  Next();
}

void Prover::End() {
  if (op_ != 0) context_.Emit(EndVerification{});
  op_ = 0;
}

v1::Proof Prover::Proof() const {
  v1::Proof proof;
  if (asked_.empty() || (right_.empty() && bad_.empty())) return proof;
  SetRef(step_, proof.mutable_step());
  proof.mutable_ranks()->Assign(right_.begin(), right_.end());
  for (const auto& [rank, status] : bad_) {
    v1::Proof::Bad& bad = *proof.add_bad();
    bad.set_rank(rank);
    bad.set_code(static_cast<uint32_t>(CodeOf(status)));
    bad.set_error(std::string(status.message()));
  }
  return proof;
}

}  // namespace ckptd::job
