// What members are told, and how often.
#include <algorithm>
#include <memory>
#include <utility>

#include "daemon/format/snapshot_ref.h"
#include "daemon/job/brief.h"
#include "daemon/job/coordinator.h"

namespace ckptd::job {
namespace {

void AddTicket(const v1::RankClaim& claim, v1::State* state) {
  v1::RankClaim& ticket = *state->add_tickets();
  ticket.set_rank(claim.rank());
  ticket.set_ticket(claim.ticket());
}

}  // namespace

void Coordinator::Resend() {
  if (state_ == nullptr || phase_ == Phase::kStopped) return;
  told_ago_ = 0;
  for (const std::string& agent : context_.config.members) Send(agent);
}

void Coordinator::Send(const std::string& agent) {
  const bool brief = brief_ != nullptr && agent != context_.config.agent && reports_.Completes(agent, choice_version_);
  context_.Emit(SendState{agent, brief ? brief_ : state_});
}

void Coordinator::Repeat() {
  if (state_ == nullptr || phase_ == Phase::kStopped) return;
  reports_.Tick();
  bool more = claims_dirty_ && Coordinates();
  if (more) Publish();
  if (!more && ++told_ago_ >= kTellAgain && !Still()) {
    Resend();
    more = true;
  }
  for (const std::string& agent : context_.config.members) {
    uint64_t heard = 0;
    const bool due = reports_.Silent(agent, &heard) > kSilent || heard != version_ || reports_.Lacks(agent);
    if (due && !more) Send(agent);
  }
  ++ticks_;
  if (!context_.config.copying()) return;
  MembersChanged();
  Evaluate();  // who is silent holds nothing
}

bool Coordinator::Still() const {
  if (phase_ == Phase::kIdle || phase_ == Phase::kStopped) return true;
  if (!Coordinates() || surveying_ || !committer_.idle() || !deleter_.idle()) return false;
  if (!reports_.AllFacts()) return false;
  return std::all_of(reports_.by_agent().begin(), reports_.by_agent().end(), [&](const auto& entry) {
    uint64_t heard = 0;
    if (reports_.Silent(entry.first, &heard) > kUnheardForLong) return true;
    return std::all_of(entry.second->ranks().begin(), entry.second->ranks().end(),
                       [](const v1::RankReport& rank) { return rank.gone() || rank.load() == v1::RankReport::NONE; });
  });
}

void Coordinator::EvaluateSoon() {
  if (context_.config.members.size() <= context_.config.at_once) return Evaluate();
  if (settling_) return;
  settling_ = true;
  context_.Emit(StartTimer{TimerKind::kSettle, 0, context_.config.settle});
}

void Coordinator::Settled() {
  settling_ = false;
  Evaluate();
}

void Coordinator::Publish() {
  dirty_ = claims_dirty_ = false;
  auto state = std::make_shared<v1::State>();
  state->set_job(context_.config.job);
  state->set_user(context_.config.user);
  state->set_attempt(attempt_);
  state->set_coordinator(context_.config.agent);
  state->set_incarnation(context_.config.incarnation);
  state->set_version(++version_);
  state->set_world_size(world_size_);
  state->set_phase(ToldPhase());
  for (const v1::Refusal& refusal : refusals_) *state->add_refusals() = refusal;
  brief_ = nullptr;
  if (ToldPhase() != v1::State::GATHER) {
    SetRef(grants_.watermark(), state->mutable_watermark());
    state->set_floor(grants_.floor());
    SetRef(committer_.durable(), state->mutable_durable());
    state->set_select_flush(context_.config.flush.selects());
    if (state->select_flush()) SetRef(flush_plan_.target(), state->mutable_flush());
    PublishProtection(state.get());
    proofs_.Fill(state.get());
    if (std::exchange(choice_dirty_, false)) choice_version_ = version_;
    brief_ = Brief(*state, choice_version_);
    PublishChoice(state.get());
    state->set_load_progress(load_progress_);
    if (ToldPhase() == v1::State::LOAD) state->mutable_loading()->Assign(loading_.begin(), loading_.end());
  } else {
    for (const auto& [rank, claim] : claims_) AddTicket(claim, state.get());
  }
  state_ = std::move(state);
  Resend();
}

v1::State::Phase Coordinator::ToldPhase() const {
  if (phase_ == Phase::kRun) return v1::State::RUN;
  return phase_ == Phase::kLoad && !surveying_ ? v1::State::LOAD : v1::State::GATHER;
}

}  // namespace ckptd::job
