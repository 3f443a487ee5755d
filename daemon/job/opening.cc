// Opening an attempt: the record first, and only then the listing. An attempt that lists before its record exists could
// miss a commit that its predecessor still reports as durable.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/job/coordinator.h"
#include "daemon/job/lineage.h"

namespace ckptd::job {

void Coordinator::Resume() {
  resuming_ = true;
  ticket_ = 0;
  Begin();
}

void Coordinator::ResumeUnseen(AttemptId attempt) {
  if (phase_ == Phase::kIdle && attempt > member_.seen()) Resume();
}

void Coordinator::Open(const Join& join) {
  const bool same_call = join.ticket == ticket_;
  const bool at_work = phase_ != Phase::kIdle && phase_ != Phase::kStopped;
  if (same_call && at_work && !resuming_) return;
  if (same_call && at_work && phase_ != Phase::kReading) return;
  if (!same_call) excluded_.clear();
  if (!same_call) excluded_copies_.clear();
  resuming_ = false;
  ticket_ = join.ticket;
  want_ = join.want;
  world_size_ = join.world_size;
  Begin();
}

void Coordinator::Begin() {
  LeaveDeletion();
  reopening_ = surveying_ = false;
  state_ = brief_ = nullptr;
  To(Trigger::kOpen);
  op_ = context_.Request(ReadNewest{});
}

void Coordinator::On(const NewestRead& event) {
  if (event.op != op_ || phase_ != Phase::kReading) return;
  if (!event.status.ok()) return StoreFailed(event.status, "reading the newest attempt record");
  const bool mine = event.found && event.record.coordinator() == context_.config.agent;
  const bool only_deleted = event.record.rank0_ticket() == 0;  // removal.h: nobody waits for a decision
  if (resuming_ && (!mine || only_deleted)) return To(Trigger::kNothingToDo);
  if (event.found && !SameUser(event.record)) return BelongsToAnother(event.record);
  if (mine && (resuming_ || (event.record.rank0_ticket() == ticket_ && !reopening_))) return AdoptRecord(event);
  if (reopening_ && event.found && event.record.attempt() >= attempt_) return Overtaken(event.record);
  To(Trigger::kNewestForeign);
  CreateNext(event.found ? event.record.attempt() : 0);
}

void Coordinator::LeaveDeletion() {
  const std::string why = absl::StrCat("job ", context_.config.job, ": it began anew. Ask again when it trains");
  deleter_.Leave(Error(ErrorCode::REFUSED, why), context_);
  (void)proofs_.Rest();
  member_.EndProof();
}

bool Coordinator::SameUser(const v1::AttemptRecord& record) const {
  return record.user().empty() || context_.config.user.empty() || record.user() == context_.config.user;
}

// This node knows nothing of the job (any more), but the storage does: whoever names it first is not its owner.
void Coordinator::BelongsToAnother(const v1::AttemptRecord& record) {
  To(Trigger::kStoreFailed);
  member_.Refuse(ticket_, ErrorCode::JOB_OWNED,
                 absl::StrCat("job ", context_.config.job, " belongs to uid ", record.user(),
                              " on the storage, this process runs as uid ", context_.config.user,
                              ": use another name, or run as that user"));
}

// Between our failed load and its retry another agent opened an attempt: rank 0 lives there now.
void Coordinator::Overtaken(const v1::AttemptRecord& record) {
  To(Trigger::kHigherAttempt);
  member_.Refuse(ticket_, ErrorCode::FENCED,
                 absl::StrCat("job ", context_.config.job, ": agent ", record.coordinator(), " opened attempt ",
                              record.attempt(), " meanwhile"));
}

void Coordinator::AdoptRecord(const NewestRead& event) {
  attempt_ = event.record.attempt();
  ticket_ = event.record.rank0_ticket();
  want_ = event.record.want();
  world_size_ = event.record.world_size();
  decided_ = event.decided && context_.config.rules.reuse_decision_file;
  if (decided_) decision_ = event.decision;
  To(Trigger::kNewestMine);
  AskList();
}

void Coordinator::CreateNext(AttemptId newest) {
  attempt_ = std::max({newest, member_.seen(), heard_}) + 1;
  decided_ = false;
  if (!context_.config.rules.record_before_listing && !listed_) return AskList();
  CreateAttempt request;
  request.record.set_job(context_.config.job);
  request.record.set_attempt(attempt_);
  request.record.set_coordinator(context_.config.agent);
  request.record.set_rank0_ticket(ticket_);
  *request.record.mutable_want() = want_;
  request.record.set_world_size(world_size_);
  request.record.set_user(context_.config.user);
  op_ = context_.Request(std::move(request));
}

void Coordinator::On(const AttemptCreated& event) {
  if (event.op != op_ || phase_ != Phase::kCreating) return;
  if (absl::IsAlreadyExists(event.status)) {
    listed_ = false;
    To(Trigger::kCreateLost);
    op_ = context_.Request(ReadNewest{});
    return;
  }
  if (!event.status.ok()) return StoreFailed(event.status, "creating an attempt record");
  To(Trigger::kCreated);
  if (listed_) return AfterListing();
  AskList();
}

void Coordinator::AskList() { op_ = context_.Request(List{.before = attempt_}); }

void Coordinator::On(const Listed& event) {
  if (event.op != op_ || (phase_ != Phase::kListing && phase_ != Phase::kCreating)) return;
  if (!event.status.ok()) return StoreFailed(event.status, "listing attempts and checkpoints");
  // The record may have been created late, under the name of one that the higher attempt had pruned: it counts for
  // nothing, and what is listed lacks what that attempt does not need.
  const bool overtaken = event.newest > attempt_ && phase_ == Phase::kListing;
  if (overtaken && context_.config.rules.created_as_newest) return HigherAttempt(event.newest, "the storage");
  decisions_ = event.decisions;
  unreadable_ = event.unreadable;
  steps_ = event.steps;
  for (StoredStep& step : steps_) {
    if (!MarkerHolds(step, decisions_, context_.config.rules.void_markers)) step.marker = 0;
  }
  if (phase_ == Phase::kListing) return AfterListing();
  listed_ = true;  // only with record_before_listing off
  CreateNext(attempt_ - 1);
}

void Coordinator::AfterListing() {
  listed_ = false;
  adopted_ = decided_;
  if (decided_) {
    To(Trigger::kListedDecided);
    op_ = context_.Request(CheckNewest{});
    return;
  }
  late_.clear();
  const v1::DecisionRecord* base = NewestBefore(decisions_, attempt_);
  for (const StoredStep& step : steps_) {
    const bool whole = step.world_size != 0 && step.sidecars == step.world_size;
    const bool skipped =
        context_.config.rules.listing_skips_marked && MarkerHolds(step, decisions_, context_.config.rules.void_markers);
    if (base == nullptr || step.committed || step.newer || !whole || skipped || !OnLineage(*base, step.id)) continue;
    late_.push_back(step.id);
  }
  if (late_.empty()) {
    To(Trigger::kListedClean);
    return StartGather();
  }
  To(Trigger::kListedLate);
  NextLateCommit();
}

void Coordinator::NextLateCommit() {
  if (late_.empty()) {
    To(Trigger::kLateCommitted);
    return StartGather();
  }
  CreateManifest request;
  request.id = late_.back();
  request.world_size = WorldOf(StepEntry(late_.back()));
  op_ = context_.Request(request);
}

// Of a step's attempt. Where neither its decision nor the history tells, as of older agents, only the step itself does.
uint32_t Coordinator::WorldOf(const StoredStep& step) const {
  uint32_t world = 0;
  for (const v1::DecisionRecord& decision : decisions_) {
    if (world == 0) world = WorldIn(decision, step.id.attempt);
  }
  return world != 0 ? world : step.world_size;
}

// One that the storage does not let be committed may be the newest: as one that it does not list, it is no reason to go
// on from an older one. What only a newer ckptd can commit counts as if it had.
void Coordinator::LateCommitted(const absl::Status& status) {
  StoredStep& step = StepEntry(late_.back());
  step.committed = status.ok();
  step.newer = CodeOf(status) == ErrorCode::NEWER_VERSION;
  if (!status.ok() && !step.newer && !NeverCommits(status)) {
    return StoreFailed(status, absl::StrCat("committing step ", step.id.step));
  }
  late_.pop_back();
  NextLateCommit();
}

void Coordinator::StartGather() {
  given_up_ = gather_over_ = surveying_ = false;
  reports_.Clear();
  claims_.clear();
  refusals_.clear();
  refused_.clear();
  contested_.clear();
  grants_ = Grants();
  committer_.Reset(attempt_, world_size_, {});
  deleter_.Reset(attempt_);
  if (member_.state() != nullptr) RememberGroups(*member_.state());
  context_.Emit(StartTimer{TimerKind::kDecide, attempt_, context_.config.decide_timeout});
  dirty_ = true;
}

// The operation may or may not have happened; a new restore() call finds out.
void Coordinator::StoreFailed(const absl::Status& status, const std::string& doing) {
  last_error_ = absl::StrCat("job ", context_.config.job, ": ", doing, ": ", status.message());
  if (state_ != nullptr) {  // the members of the attempt before know a STATE: tell them all
    RefuseAll(CodeOf(status), last_error_);
    Publish();
  } else if (ticket_ != 0) {
    member_.Refuse(ticket_, CodeOf(status), last_error_);
  }
  To(Trigger::kStoreFailed);
  if (!resuming_) return;
  ticket_ = 0;
  context_.Emit(StartTimer{TimerKind::kRetry, 0, context_.config.retry});
}

}  // namespace ckptd::job
