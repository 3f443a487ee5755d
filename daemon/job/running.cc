// LOAD and RUN: everybody loads the same snapshot or nobody goes; then W, G, commits and deletion.
#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/job/coordinator.h"
#include "daemon/job/lineage.h"
#include "daemon/job/pruning.h"

namespace ckptd::job {
namespace {

constexpr size_t kMostLoadingNamed = 32;

bool Persisted(const v1::RankReport& facts, const SnapshotId& id) { return Names(facts.persisted(), id); }

}  // namespace

void Coordinator::Evaluate() {
  if (phase_ == Phase::kGather) TryDecide();
  if (surveying_ && phase_ == Phase::kLoad && (reports_.AllMembersReported() || gather_over_)) BeginLoad();
  if (surveying_ && phase_ == Phase::kLoad) {
    if (dirty_) Publish();
    return;
  }
  if (phase_ == Phase::kLoad || phase_ == Phase::kRun) {
    UpdateGrants();
    UpdateLoading();
    CheckLoads();
  }
  if (phase_ == Phase::kLoad || phase_ == Phase::kRun) {
    UpdateRemains();
    UpdateCommits();
    UpdateFlush();
    UpdateProtection();
  }
  if (phase_ == Phase::kLoad || phase_ == Phase::kRun) UpdateDeletion();
  if (dirty_ && Coordinates()) Publish();
}

void Coordinator::EnterLoad() {
  if (!NeedsSurvey()) BeginLoad();
}

void Coordinator::BeginLoad() {
  claims_.clear();
  for (const v1::RankClaim& claim : decision_.ranks()) claims_[claim.rank()] = claim;
  grants_.Reset(attempt_, ToId(decision_.parent()));
  TakeStock();
  load_turns_ = load_progress_ = 0;
  loading_.clear();
  reports_.Assign(claims_);  // those of GATHER, or of the life before, are void: facts count from here on
  refusals_.clear();
  given_up_ = false;
  last_error_.clear();
  flush_plan_.Reset(attempt_, ToId(decision_.parent()));
  committer_.Reset(attempt_, world_size_, NewestCommitted());
  deleter_.Reset(attempt_);
  partial_.clear();
  gone_.clear();
  dirty_ = choice_dirty_ = true;
}

SnapshotId Coordinator::NewestCommitted() const {
  SnapshotId newest;
  for (const StoredStep& step : steps_) {
    if (step.committed && !MarkerHolds(step, decisions_, context_.config.rules.void_markers) &&
        OnLineage(decision_, step.id)) {
      newest = std::max(newest, step.id);
    }
  }
  return newest;
}

// A rank called restore() again (a new process, or the same) while rank 0 still waits in its own.
bool Coordinator::JoinedAnew() const {
  const v1::RankReport* zero = reports_.Facts(0);
  if (zero == nullptr || zero->ticket() != ticket_ || zero->load() == v1::RankReport::RUN) return false;
  for (const auto& [agent, report] : reports_.by_agent()) {
    for (const v1::RankReport& facts : report->ranks()) {
      const auto claim = claims_.find(facts.rank());
      if (facts.load() != v1::RankReport::WAIT || claim == claims_.end() || facts.rank() == 0) continue;
      if (facts.ticket() != claim->second.ticket() && refused_.count(facts.ticket()) == 0) return true;
    }
  }
  return false;
}

// Whoever waits for the others is told that they go on, and whom it waits for.
void Coordinator::UpdateLoading() {
  if (phase_ != Phase::kLoad) return;
  uint64_t turns = 0;
  std::vector<Rank> loading;
  size_t place = 0;
  for (const auto& [rank, claim] : claims_) {
    const v1::RankReport* facts = reports_.Facts()[place++];
    const bool named = facts != nullptr && facts->ticket() == claim.ticket();
    const bool loaded = named && (facts->load() == v1::RankReport::LOADED || facts->load() == v1::RankReport::RUN);
    if (named) turns += facts->load_turns();
    if (!loaded && loading.size() < kMostLoadingNamed) loading.push_back(rank);
  }
  if (turns == load_turns_ && loading == loading_) return;
  load_turns_ = turns;
  loading_ = std::move(loading);
  ++load_progress_;
  ClaimsChanged();
}

void Coordinator::CheckLoads() {
  if (given_up_) return;
  size_t loaded = 0;
  size_t place = 0;
  for (const auto& [rank, claim] : claims_) {
    const v1::RankReport* facts = reports_.Facts()[place++];
    const bool named =
        facts != nullptr && (facts->ticket() == claim.ticket() || !context_.config.rules.only_decided_tickets);
    if (!named) continue;
    if (facts->load() == v1::RankReport::FAILED) return LoadFailed(*facts);
    loaded += facts->load() == v1::RankReport::LOADED || facts->load() == v1::RankReport::RUN ? 1 : 0;
  }
  if (JoinedAnew()) return Reopen();
  if (phase_ == Phase::kRun) return;
  if (loaded == claims_.size() || (loaded > 0 && !context_.config.rules.go_after_all_loaded)) {
    To(Trigger::kAllLoaded);
    dirty_ = true;
    context_.Request(PruneRecords{0, attempt_, NeedlessDecisions(decision_, decisions_, steps_)});
  }
}

void Coordinator::On(const RecordsPruned& event) {
  if (event.status.ok()) HigherAttempt(event.newest, "the storage");
}

// Bad bytes and a failing storage are answered by another source; anything else would fail again for the same reason.
void Coordinator::LoadFailed(const v1::RankReport& facts) {
  const std::string reason = absl::StrCat("rank ", facts.rank(), ": ", facts.failure());
  const auto code = static_cast<ErrorCode>(facts.failure_code());
  const bool replica = facts.failed_source() == v1::RankReport::REPLICA;
  const bool storage = replica || facts.failed_source() == v1::RankReport::STORAGE;
  if (replica) excluded_copies_.insert(ToId(decision_.parent()));
  if (storage) excluded_[ToId(decision_.parent())] = {code, reason, facts.rank()};
  if (!storage && code != ErrorCode::CORRUPT) return RefuseAll(code, Prefix() + reason);
  last_error_ = Prefix() + reason;
  Reopen();
}

void Coordinator::Reopen() {
  LeaveDeletion();
  reopening_ = true;
  resuming_ = false;
  To(Trigger::kLoadFailed);
  CreateNext(attempt_);
}

void Coordinator::UpdateGrants() {
  const SnapshotId before = grants_.watermark();
  const StepId floor = state_ == nullptr ? 0 : state_->floor();
  grants_.Update(reports_.Facts(), context_.config.rules);
  if (grants_.floor() != floor || grants_.watermark() != before) dirty_ = true;
}

// A snapshot of this attempt, or the parent, is committed when every rank says that its part is on storage. What the
// ranks say is a hint: the manifest is made from the sidecars themselves.
void Coordinator::UpdateCommits() {
  const v1::RankReport* first = reports_.Facts(0);
  if (first == nullptr) return;
  for (const v1::SnapshotRef& ref : first->persisted()) {
    const SnapshotId id = ToId(ref);
    if (id.attempt != attempt_ && id != ToId(decision_.parent())) continue;
    if (deleter_.Deletes(id)) continue;
    const auto persisted = [&](const v1::RankReport* facts) { return facts != nullptr && Persisted(*facts, id); };
    if (!std::all_of(reports_.Facts().begin(), reports_.Facts().end(), persisted)) continue;
    committer_.Offer(id, IsCommitted(id));
  }
  // A snapshot that a rank has stopped to name is not named again. (Were it, its manifest would be there or its files
  // gone.)
  committer_.Forget([&](const SnapshotId& id) { return !Persisted(*first, id); });
  committer_.Work(context_);
}

void Coordinator::UpdateFlush() {
  const SnapshotId durable = committer_.durable();
  if (flush_plan_.Update(context_.config.flush, reports_.Facts(), grants_.watermark(), durable)) dirty_ = true;
}

// Without making an entry: ranks also name steps that were deleted since.
bool Coordinator::IsCommitted(const SnapshotId& id) const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [&](const StoredStep& step) { return step.id == id && step.committed; });
}

StoredStep& Coordinator::StepEntry(const SnapshotId& id) {
  for (StoredStep& step : steps_) {
    if (step.id == id) return step;
  }
  StoredStep& step = steps_.emplace_back();
  step.id = id;
  step.world_size = step.sidecars = world_size_;
  return step;
}

void Coordinator::On(const ManifestCreated& event) {
  if (phase_ == Phase::kCommitting && event.op == op_) return LateCommitted(event.status);
  if (Coordinates()) OnCommit(committer_.On(event, context_));
}

void Coordinator::On(const NewestChecked& event) {
  if (phase_ == Phase::kChecking && event.op == op_) {
    if (!event.status.ok()) return context_.Emit(StartTimer{TimerKind::kRetry, attempt_, context_.config.retry});
    if (event.newest > attempt_) return HigherAttempt(event.newest, "the storage");
    To(Trigger::kStillNewest);
    return EnterLoad();
  }
  if (!Coordinates()) return;
  OnCommit(committer_.On(event, context_));
  if (deleter_.On(event, context_) == Deleter::Outcome::kHigherAttempt) HigherAttempt(event.newest, "the storage");
}

void Coordinator::OnCommit(Committer::Outcome outcome) {
  if (outcome == Committer::Outcome::kHigherAttempt) return HigherAttempt(attempt_ + 1, "the storage");
  if (outcome == Committer::Outcome::kFailed) return flush_plan_.NotCommitted(committer_.id());
  if (outcome != Committer::Outcome::kDurable) return;
  StoredStep& step = StepEntry(committer_.id());
  step.committed = true;
  step.world_size = step.sidecars = world_size_;  // some may have come since it was listed
  deleter_.Committed();
  dirty_ = true;
}

void Coordinator::UpdateDeletion() {
  do {
    deleter_.Work(Deletable(), phase_ == Phase::kRun, context_);
  } while (ProofEnded());
}

// While the deleter rests because a part could not be read, the agents that read others go on.
bool Coordinator::ProofEnded() {
  if (deleter_.proving().none()) {
    if (deleter_.failure().ok() && proofs_.Rest()) dirty_ = true;
    return false;
  }
  const v1::Proof own = member_.Proof();
  const ProofFacts facts{claims_, reports_, context_.config, own};
  if (proofs_.Ask(StepEntry(deleter_.proving()), facts)) dirty_ = true;
  const std::optional<absl::Status> found = proofs_.Found(facts);
  if (!found) return false;
  if (found->ok()) (void)proofs_.Rest();  // nobody reads any more: it need not be told
  deleter_.Proved(*found, context_);
  return true;
}

void Coordinator::On(const MarkerPut& event) {
  if (const auto stays = deleter_.On(event, context_)) Keep(event, &StepEntry(*stays));
}

void Coordinator::On(const StepDeleted& event) {
  const std::optional<SnapshotId> gone = deleter_.On(event, context_);
  if (!gone) return;
  std::erase_if(steps_, [&](const StoredStep& step) { return step.id == *gone; });
  NoteGone(*gone);
}

void Coordinator::On(const PinLooked& event) {
  if (const auto unpinned = deleter_.On(event)) On(PinChanged{*unpinned, false});
}

void Coordinator::On(const PinChanged& event) {
  if (event.pinned && Coordinates()) StepEntry(event.id).pinned = true;  // it may be on its way to the storage still
  for (StoredStep& step : steps_) {
    if (step.id == event.id) step.pinned = event.pinned;
  }
}

void Coordinator::On(const DeleteRequested& event) {
  if ((phase_ != Phase::kLoad && phase_ != Phase::kRun) || surveying_) {
    const std::string who = member_.state() == nullptr ? "no agent" : "agent " + member_.state()->coordinator();
    return context_.Emit(DeleteEnded{event.request, Error(ErrorCode::REFUSED, absl::StrCat("job ", context_.config.job,
                                                                                           ": this agent does not "
                                                                                           "coordinate it now; ",
                                                                                           who, " does"))});
  }
  deleter_.Request(event, Deletable(), context_);
}

void Coordinator::On(const RetentionChanged& event) { context_.config.retention = event.retention; }

void Coordinator::Retry(AttemptId attempt) {
  if (attempt == 0 && phase_ == Phase::kIdle && ticket_ == 0) return Resume();
  if (attempt != attempt_) return;
  committer_.Retry();
  deleter_.Retry();
  if (phase_ == Phase::kChecking) op_ = context_.Request(CheckNewest{});
}

void Coordinator::HigherAttempt(AttemptId attempt, const std::string& where) {
  const bool opened = phase_ >= Phase::kListing && phase_ <= Phase::kRun;
  if (!opened || attempt <= attempt_) return;
  To(Trigger::kHigherAttempt);
  state_ = brief_ = nullptr;
  const std::string why = absl::StrCat(
      Prefix(), where, " knows the higher attempt ", attempt,
      ": rank 0 began anew, or this storage is not the one that it ran on; the next restore() goes beyond it");
  deleter_.Leave(Error(ErrorCode::FENCED, why), context_);
  (void)proofs_.Rest();
  member_.Refuse(ticket_, ErrorCode::FENCED, why);
}

void Coordinator::FillView(View* view) const {
  view->phase = phase_;
  if (phase_ == Phase::kIdle || phase_ == Phase::kStopped) return;
  view->told = ToldPhase();
  if (view->seen != attempt_) {  // what was told is of the attempt before
    view->watermark = {};
    view->floor = 0;
  }
  view->attempt = attempt_;
  view->world_size = world_size_;
  view->stored = steps_;
  for (Rank rank = 0; rank < world_size_; ++rank) {
    if (claims_.count(rank) == 0) view->missing.push_back(rank);
  }
  for (const std::string& agent : context_.config.members) {
    if (!reports_.Has(agent)) view->silent_agents.push_back(agent);
  }
  view->last_error = last_error_;
  if (phase_ != Phase::kLoad && phase_ != Phase::kRun) return;
  view->parent = ToId(decision_.parent());
  view->watermark = std::max(view->watermark, grants_.watermark());  // what its predecessor told holds
  view->floor = std::max(view->floor, grants_.floor());
  view->durable = committer_.durable();
  view->trouble = committer_.failure();
  if (view->trouble.ok()) view->trouble = deleter_.undeleted();
  if (view->trouble.ok()) view->trouble = deleter_.damage();
  if (!view->trouble.ok()) view->last_error = std::string(view->trouble.message());
  FillProtection(view);
}

}  // namespace ckptd::job
