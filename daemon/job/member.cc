#include "daemon/job/member.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/job/brief.h"

namespace ckptd::job {
namespace {

template <typename Messages>
bool SameMessages(const Messages& a, const Messages& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.SerializeAsString() == y.SerializeAsString(); });
}

bool Same(const CopiesChanged& a, const CopiesChanged& b) {
  return a.seen == b.seen && SameMessages(a.copies, b.copies) && SameMessages(a.parity, b.parity);
}

// Who has joined, as far as `state` tells.
const auto& ClaimsOf(const v1::State& state) {
  return state.has_decision() ? state.decision().ranks() : state.tickets();
}

}  // namespace

void Member::On(const Started& event) {
  started_ = true;
  seen_ = std::max(seen_, event.seen);
  region_id_ = event.region_id;
  lost_ = event.lost;
  kept_ = event.marks;
  if (kept_.attempt == seen_) marks_.Raise(kept_.marks);
  KeepResending();
}

// Alone, no message is lost.
void Member::KeepResending() {
  if (resending_ || !started_ || context_.config.members.size() < 2) return;
  resending_ = true;
  const Nanos after = quiet_ ? context_.config.resend * kQuietFactor : context_.config.resend;
  context_.Emit(StartTimer{TimerKind::kResend, resend_key_, after});
}

void Member::Resent(uint64_t key) {
  if (key != resend_key_) return;
  ++unheard_;
  resending_ = false;
  KeepResending();
}

bool Member::Quiet() const {
  return unheard_ >= kUnheardForLong && std::none_of(seats_.begin(), seats_.end(), [](const auto& seat) {
           return seat.second.process != 0 || seat.second.waiting;
         });
}

void Member::SetQuiet(bool quiet) {
  if (std::exchange(quiet_, quiet) == quiet || quiet) return;
  unheard_ = 0;
  ++resend_key_;  // the slow one goes on no more
  resending_ = false;
  KeepResending();
}

bool Member::On(const Join& event) {
  Seat& seat = seats_[event.rank];
  if (seat.process != 0 && seat.process != event.process) {
    context_.Emit(
        ckptd::job::Refuse{event.rank, event.ticket, ErrorCode::RANK_TAKEN,
                           absl::StrCat("job ", context_.config.job, ": rank ", event.rank,
                                        " is held by another live process on agent ", context_.config.agent)});
    return false;
  }
  const bool again = seat.waiting && seat.join.ticket == event.ticket;
  seat.process = event.process;
  seat.join = event;
  seat.waiting = true;
  if (!again) seat.goes_on = seat.told = false;
  context_.Emit(AcceptJoin{event.rank, event.ticket, event.process});
  if (seat.told) KeepWaiting(event.rank, seat);  // which a connection that broke may have lost
  if (!again && event.timeout > Nanos{}) {
    context_.Emit(StartTimer{TimerKind::kJoin, event.ticket, event.timeout, event.rank});
  }
  return true;
}

void Member::On(const Withdrawn& event) {
  const auto it = seats_.find(event.rank);
  if (it != seats_.end() && it->second.join.ticket == event.ticket) it->second.waiting = false;
}

void Member::On(const Reaped& event) {
  const auto it = seats_.find(event.rank);
  if (it == seats_.end() || it->second.process != event.process) return;
  it->second.process = 0;
  it->second.waiting = false;
}

void Member::On(const Resumed& event) {
  Seat& seat = seats_[event.rank];
  if (seat.process == 0) seat.process = event.process;
}

bool Member::Waiting(Rank rank, Ticket ticket) const {
  const auto it = seats_.find(rank);
  return it != seats_.end() && it->second.waiting && it->second.join.ticket == ticket;
}

void Member::On(const StateReceived& event) {
  const v1::State& state = *event.state;
  if (state.attempt() < seen_ && context_.config.rules.refuse_old_state) return TellHigher(state);
  if (!FromItsCoordinator(state)) return;
  unheard_ = 0;
  const StatePtr whole = context_.config.rules.ask_for_whole ? Whole(event.state, state_) : event.state;
  if (whole == nullptr) return Ask(state);
  Learn(whole);
  TakeRefusals(state);
  context_.Emit(ForwardState{whole});
  TakeProgress(*whole);
  prover_.Follow(*whole);
  SendReport();
}

// One agent coordinates an attempt, for ever: its record names it, and was created exclusively.
bool Member::FromItsCoordinator(const v1::State& state) const {
  return state_ == nullptr || state_->attempt() != state.attempt() || state_->coordinator() == state.coordinator();
}

// Whoever coordinates the older attempt may not find the newer one on the storage: it is another one, or was put back.
// It may be the one of the newer attempt too, whose older STATE was late: for that one this is not an answer, or it
// would believe that nothing is in memory here.
void Member::TellHigher(const v1::State& state) {
  auto report = std::make_shared<v1::Report>(*NothingHere(state, Self(), NextNumber()));
  report->set_seen(seen_);
  report->clear_answers();
  context_.Emit(ckptd::job::SendReport{state.coordinator(), std::move(report)});
  SendReport();
}

// What it says is not learned, its attempt neither: who has nothing of it in memory may have lost its region too.
void Member::Ask(const v1::State& state) {
  context_.Emit(ckptd::job::SendReport{state.coordinator(), AskForWhole(state, Self(), seen_, NextNumber())});
}

ReporterId Member::Self() const { return {context_.config.agent, context_.config.incarnation, region_id_}; }

bool Member::SameUser(const v1::State& state) const {
  return context_.config.user.empty() || state.user() == context_.config.user;
}

void Member::StayOut(const v1::State& state) {
  const std::string why =
      absl::StrCat("job ", context_.config.job, " runs for uid ", state.user(), " on agent ", state.coordinator(),
                   ", this process runs as uid ", context_.config.user, ": use another name, or run as that user");
  for (auto& [rank, seat] : seats_) {
    const bool settled =
        rank == 0 || state_ != nullptr;  // whose rank 0 is, the storage says; and whose this attempt is
    if (!settled) Refuse(seat.join.ticket, ErrorCode::JOB_OWNED, why);
  }
  context_.Emit(ckptd::job::SendReport{state.coordinator(), NothingHere(state, Self(), NextNumber())});
}

void Member::Learn(const StatePtr& state) {
  if (state->attempt() != seen_) {
    seen_ = state->attempt();
    watermark_ = {};
    floor_ = 0;
    marks_ = kept_.attempt == seen_ ? kept_.marks : ProtectionMarks();
    if (context_.config.rules.persist_seen) context_.Emit(PersistSeen{seen_});
  }
  state_ = state;
  watermark_ = std::max(watermark_, ToId(state->watermark()));
  floor_ = std::max<StepId>(floor_, state->floor());
  RaiseMarks(MarksOf(*state));
}

ProtectionMarks Member::MarksIn(AttemptId attempt) const {
  if (attempt == seen_) return marks_;
  return attempt == kept_.attempt ? kept_.marks : ProtectionMarks();
}

void Member::RaiseMarks(const ProtectionMarks& told) {
  const ProtectionMarks before = marks_;
  marks_.Raise(told);
  if (marks_ != before && context_.config.rules.persist_marks) context_.Emit(PersistMarks{{seen_, marks_}});
}

bool Member::Named(Ticket ticket) const {
  return state_ != nullptr && std::any_of(ClaimsOf(*state_).begin(), ClaimsOf(*state_).end(),
                                          [&](const v1::RankClaim& claim) { return claim.ticket() == ticket; });
}

// The timeout of a restore() is for the decision. Whom it names waits on, as long as the ranks go on to load.
void Member::TakeProgress(const v1::State& state) {
  if (state.phase() != v1::State::LOAD) return;
  const bool same = state.attempt() == loads_ && state.incarnation() == counted_by_;
  if (same && state.load_progress() <= progress_) return;
  loads_ = state.attempt();
  counted_by_ = state.incarnation();
  progress_ = state.load_progress();
  for (auto& [rank, seat] : seats_) {
    if (!seat.waiting || !Named(seat.join.ticket)) continue;
    seat.goes_on = true;
    if (!std::exchange(seat.told, true)) KeepWaiting(rank, seat);
  }
}

// Its timer may just have begun anew when the last of it was heard, and fires twice before it is refused.
void Member::KeepWaiting(Rank rank, Seat& seat) {
  context_.Emit(ckptd::job::KeepWaiting{rank, seat.join.ticket, 2 * seat.join.timeout});
}

void Member::TakeRefusals(const v1::State& state) {
  for (const v1::Refusal& refusal : state.refusals()) {
    for (const Ticket ticket : refusal.tickets()) {
      Refuse(ticket, static_cast<ErrorCode>(refusal.code()), refusal.message());
    }
  }
}

void Member::Refuse(Ticket ticket, ErrorCode code, const std::string& message) {
  for (auto& [rank, seat] : seats_) {
    if (!seat.waiting || seat.join.ticket != ticket) continue;
    seat.waiting = false;
    context_.Emit(ckptd::job::Refuse{rank, ticket, code, message});
  }
}

void Member::On(const RankChanged& event) {
  Seat& seat = seats_[event.report->rank()];
  seat.facts = event.report;
  const bool runs = event.report->load() == v1::RankReport::RUN && event.report->ticket() == seat.join.ticket;
  if (runs) seat.waiting = false;
  if (event.report->seen() < seen_ && state_ != nullptr) context_.Emit(ForwardState{state_});
  SendReport();
}

// As with the ranks: stated under a lower attempt, they may have been given up meanwhile. Each STATE brings one, and
// was answered already.
void Member::On(const CopiesChanged& event) {
  const bool news = !copies_ || !Same(*copies_, event);
  copies_ = event;
  if (event.seen < seen_ && state_ != nullptr) context_.Emit(ForwardState{state_});
  if (news) SendReport();
}

void Member::On(const CopyRefused& event) {
  if (event.id != marks_.target || event.id <= marks_.given_up) return;
  RaiseMarks({{}, {}, event.id, 0});
  SendReport();
}

bool Member::FactsAreCurrent() const {
  if (copies_ && copies_->seen != seen_ && context_.config.rules.copies_stated_under_seen) return false;
  return std::all_of(seats_.begin(), seats_.end(), [&](const auto& seat) {
    return seat.second.facts != nullptr && seat.second.facts->seen() == seen_;
  });
}

void Member::SendReport() {
  if (state_ == nullptr || state_->attempt() != seen_ || !FactsAreCurrent()) return;
  auto report = std::make_shared<v1::Report>();
  report->set_job(context_.config.job);
  report->set_agent(context_.config.agent);
  report->set_seen(seen_);
  report->set_region_id(region_id_);
  report->set_lost(lost_);
  report->set_incarnation(context_.config.incarnation);
  report->set_seq(NextNumber());
  report->set_answers(state_->incarnation());
  report->set_heard(state_->version());
  report->set_completes(true);
  SetRef(watermark_, report->mutable_watermark());
  report->set_floor(floor_);
  for (const auto& [rank, seat] : seats_) {
    v1::RankReport* facts = report->add_ranks();
    *facts = *seat.facts;
    if (!seat.waiting || facts->ticket() != seat.join.ticket) continue;
    *facts->mutable_want() = seat.join.want;
    facts->set_world_size(seat.join.world_size);
  }
  if (copies_) report->mutable_copies()->Assign(copies_->copies.begin(), copies_->copies.end());
  if (copies_) report->mutable_parity()->Assign(copies_->parity.begin(), copies_->parity.end());
  SetRef(marks_.complete, report->mutable_protected_());
  SetRef(marks_.target, report->mutable_protecting());
  SetRef(marks_.given_up, report->mutable_unprotected());
  report->set_protection_turns(marks_.turns);
  report->set_proves(true);
  if (state_->has_to_prove() && !CoordinatesIt()) *report->mutable_proof() = prover_.Proof();
  context_.Emit(ckptd::job::SendReport{state_->coordinator(), std::move(report)});
}

void Member::On(const RankVerified& event) {
  if (prover_.On(event)) TellProof();
}

void Member::EndProof() {
  if (CoordinatesIt()) prover_.End();
}

// The coordinator on this agent asks for it.
void Member::TellProof() {
  if (!CoordinatesIt()) SendReport();
}

bool Member::CoordinatesIt() const { return state_ != nullptr && state_->coordinator() == context_.config.agent; }

// What is read again is not bad for now, and the coordinator hears that too.
void Member::ProverRested() {
  prover_.Rested();
  TellProof();
}

void Member::On(const StorageHangs& event) {
  for (const auto& [rank, seat] : seats_) {
    if (!seat.waiting || (event.ticket != 0 && event.ticket != seat.join.ticket)) continue;
    if (event.ticket != 0 && seat.goes_on) continue;
    Refuse(seat.join.ticket, ErrorCode::STORAGE_HUNG,
           absl::StrCat("job ", context_.config.job, " rank ", rank, ": the storage hangs: ", event.call));
  }
}

std::string Member::MissingRanks() const {
  if (state_ == nullptr || state_->world_size() == 0) return "0";
  const auto& claims = ClaimsOf(*state_);
  std::vector<Rank> missing;
  for (Rank rank = 0; rank < state_->world_size(); ++rank) {
    const bool joined =
        std::any_of(claims.begin(), claims.end(), [&](const v1::RankClaim& claim) { return claim.rank() == rank; });
    if (!joined) missing.push_back(rank);
  }
  return absl::StrJoin(missing, ",");
}

std::string Member::WhoStandsStill() const {
  if (state_ == nullptr || state_->loading().empty()) return "not every rank has loaded in time";
  return absl::StrCat("what was decided is not loaded: nothing more was read for ranks ",
                      absl::StrJoin(state_->loading(), ","), "; look at their processes and nodes");
}

void Member::JoinTimedOut(Ticket ticket, Phase phase) {
  const auto it =
      std::find_if(seats_.begin(), seats_.end(), [&](const auto& seat) { return seat.second.join.ticket == ticket; });
  if (it == seats_.end() || !it->second.waiting) return;
  if (std::exchange(it->second.goes_on, false)) {
    context_.Emit(StartTimer{TimerKind::kJoin, ticket, it->second.join.timeout, it->first});
    return KeepWaiting(it->first, it->second);
  }
  const std::string name = absl::StrCat("job ", context_.config.job, " rank ", it->first, ": ");
  const bool store = it->first == 0 && phase >= Phase::kReading && phase <= Phase::kCommitting;
  if (store) return Refuse(ticket, ErrorCode::STORAGE_HUNG, name + "the storage does not answer, so no attempt opens");
  if (!Named(ticket) && it->first != 0) {
    return Refuse(ticket, ErrorCode::RANKS_MISSING,
                  name + "rank 0 did not call restore(); only rank 0 opens an attempt that others can join");
  }
  const std::string missing = MissingRanks();
  if (missing.empty()) return Refuse(ticket, ErrorCode::TIMEOUT, name + WhoStandsStill());
  Refuse(ticket, ErrorCode::RANKS_MISSING, absl::StrCat(name, "ranks ", missing, " did not call restore()"));
}

void Member::FillView(View* view) const {
  view->seen = seen_;
  view->watermark = watermark_;
  view->floor = floor_;
  if (state_ == nullptr) return;
  view->coordinator = state_->coordinator();
  if (state_->attempt() != seen_ || state_->phase() == v1::State::GATHER) return;
  view->told = state_->phase();
  view->world_size = state_->world_size();
  view->parent = ToId(state_->decision().parent());
  view->durable = ToId(state_->durable());
}

}  // namespace ckptd::job
