#include "daemon/job/deletion.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/job/lineage.h"

namespace ckptd::job {
namespace {

const StoredStep* Find(const std::vector<StoredStep>& steps, const SnapshotId& id) {
  const auto it = std::find_if(steps.begin(), steps.end(), [&](const StoredStep& step) { return step.id == id; });
  return it == steps.end() ? nullptr : &*it;
}

// Files of an earlier attempt without a manifest, and nobody writes more of them.
bool Leftover(const StoredStep& step, const DeletionFacts& facts) {
  return !step.committed && step.id.attempt < facts.decision.attempt() && !facts.sealed(step.id);
}

// What no attempt will ever commit or choose: incomplete, and on no history any more or completed by nobody.
bool DeadRemains(const StoredStep& step, const DeletionFacts& facts) {
  const bool whole = step.world_size != 0 && step.sidecars == step.world_size;
  if (whole || step.committed) return false;
  return (Leftover(step, facts) && !OnLineage(facts.decision, step.id)) || facts.over(step.id);
}

// A rank may write its part of it, or is about to.
bool Underway(const StoredStep& step, const DeletionFacts& facts) {
  if (step.committed) return false;
  return facts.sealed(step.id) || (step.id.attempt == facts.decision.attempt() && !facts.over(step.id));
}

// The run started from it, or may restart from it.
bool RunNeeds(const SnapshotId& id, const DeletionFacts& facts) {
  return id == facts.watermark || id == ToId(facts.decision.parent());
}

// Of the storage as a whole, and not of the files of one step.
bool FailsForAll(const absl::Status& status) {
  const ErrorCode code = CodeOf(status);
  return code == ErrorCode::STORAGE_FULL || code == ErrorCode::STORAGE_READ_ONLY || code == ErrorCode::STORAGE_HUNG;
}

absl::Status CannotBeDeleted(const SnapshotId& id, const absl::Status& why, const Context& context) {
  return Error(CodeOf(why),
               absl::StrCat("job ", context.config.job, ": step ", id.step, " cannot be deleted: ", why.message()));
}

absl::Status IsDamaged(const SnapshotId& id, const absl::Status& why, const Context& context) {
  return Error(ErrorCode::CORRUPT, absl::StrCat("job ", context.config.job, ": step ", id.step,
                                                " is damaged on the storage, so older ones stay until a newer one is "
                                                "whole: ",
                                                why.message()));
}

}  // namespace

void Deleter::Reset(AttemptId attempt) {
  *this = Deleter();
  attempt_ = attempt;
}

bool Deleter::Stands(const StoredStep& step, const DeletionFacts& facts) const {
  const bool marked = step.marker != 0 || marked_.count(step.id) != 0;
  return step.committed && !marked && damaged_.count(step.id) == 0 && OnLineage(facts.decision, step.id);
}

std::optional<SnapshotId> Deleter::Newest(const DeletionFacts& facts) const {
  std::optional<SnapshotId> newest;
  for (const StoredStep& step : facts.steps) {
    if (Stands(step, facts) && (!newest || step.id > *newest)) newest = step.id;
  }
  return newest;
}

bool Deleter::Proven(const SnapshotId& victim, const DeletionFacts& facts, const Context& context) const {
  const StoredStep* found = Find(facts.steps, victim);
  if (!context.config.rules.verify_before_delete || (found != nullptr && DeadRemains(*found, facts))) return true;
  return std::any_of(facts.steps.begin(), facts.steps.end(), [&](const StoredStep& step) {
    return step.id > victim && verified_.count(step.id) != 0 && Stands(step, facts);
  });
}

// Oldest first. `kept` counts the good steps that are newer. With `pinned`, what would go but for its pin.
std::vector<SnapshotId> Deleter::Surplus(const DeletionFacts& facts, const Retention& retention, bool pinned) const {
  const SnapshotId newest = Newest(facts).value_or(SnapshotId());
  std::vector<const StoredStep*> newest_first;
  newest_first.reserve(facts.steps.size());
  for (const StoredStep& step : facts.steps) newest_first.push_back(&step);
  std::sort(newest_first.begin(), newest_first.end(), [](const auto* a, const auto* b) { return a->id > b->id; });
  std::vector<SnapshotId> surplus;
  uint32_t kept = 0;
  for (const StoredStep* step : newest_first) {
    const bool spared = step->pinned != pinned || step->newer || RunNeeds(step->id, facts);
    const bool behind = step->id < newest && (LetGo(*step, kept, facts, retention) || Leftover(*step, facts));
    if (!spared && (behind || DeadRemains(*step, facts))) surplus.push_back(step->id);
    if (Stands(*step, facts)) ++kept;
  }
  std::reverse(surplus.begin(), surplus.end());
  return surplus;
}

// A damaged step is kept as long as a good one in its place would be.
bool Deleter::LetGo(const StoredStep& step, uint32_t newer, const DeletionFacts& facts,
                    const Retention& retention) const {
  // Whoever marked it died before its files were gone; or this deleter did, and failed.
  if (step.marker != 0 || marked_.count(step.id) != 0) return true;
  const bool every = retention.keep_every != 0 && step.id.step % retention.keep_every == 0;
  return step.committed && OnLineage(facts.decision, step.id) && newer >= std::max(retention.keep_last, 1u) && !every;
}

absl::Status Deleter::MayGo(const SnapshotId& id, const DeletionFacts& facts, const Context& context) const {
  const StoredStep* found = Find(facts.steps, id);
  const std::string name = absl::StrCat("job ", context.config.job, ": step ", id.step);
  const auto refused = [&](absl::string_view why) { return Error(ErrorCode::REFUSED, absl::StrCat(name, why)); };
  if (found == nullptr) return Error(ErrorCode::NOT_FOUND, absl::StrCat(name, " is not on the storage"));
  if (found->pinned) return refused(" is pinned: ckptctl unpin first");
  if (found->newer) return Error(ErrorCode::NEWER_VERSION, absl::StrCat(name, " was committed by a newer ckptd"));
  if (RunNeeds(id, facts))
    return refused(" is what the present run goes back to: it can go when the run has a newer one");
  if (Underway(*found, facts)) return refused(" is being written: it can go when it is done");
  const std::optional<SnapshotId> newest = Newest(facts);
  if ((newest && id < *newest) || DeadRemains(*found, facts)) return absl::OkStatus();
  return refused(
      " may be the last good checkpoint: no newer good step of the job is committed. It can go when there is one");
}

void Deleter::Request(const DeleteRequested& event, const DeletionFacts& facts, Context& context) {
  const absl::Status may = MayGo(event.id, facts, context);
  if (!may.ok()) return context.Emit(DeleteEnded{event.request, may});
  asked_.push_back({event.id, event.request});
}

// A pin, a damaged successor or another request may have changed what was possible when it was asked for.
void Deleter::RefuseWhatMayNotGo(const DeletionFacts& facts, Context& context) {
  std::erase_if(asked_, [&](const Asked& asked) {
    const absl::Status may = MayGo(asked.id, facts, context);
    if (!may.ok()) context.Emit(DeleteEnded{asked.request, may});
    return !may.ok();
  });
}

void Deleter::Work(const DeletionFacts& facts, bool retention, Context& context) {
  if (op_ != 0 || !failure_.ok()) return;
  RefuseWhatMayNotGo(facts, context);
  std::vector<SnapshotId> victims;
  for (const Asked& asked : asked_) victims.push_back(asked.id);
  if (victims.empty() && retention) {
    victims = Surplus(facts, context.config.retention);
    std::erase_if(victims, [&](const SnapshotId& id) { return undeleted_.count(id) != 0; });
  }
  if (victims.empty() && retention) LookAtPins(facts, context);
  if (victims.empty()) return;
  const auto proven =
      std::find_if(victims.begin(), victims.end(), [&](const auto& id) { return Proven(id, facts, context); });
  if (proven != victims.end()) {
    victim_ = *proven;
    const StoredStep* found = Find(facts.steps, victim_);
    return Mark(found != nullptr && DeadRemains(*found, facts), context);
  }
  Verify(victims.front(), facts, context);
}

// What is proven in part is gone on with: where attempts are short, the newest is always another one.
void Deleter::Verify(const SnapshotId& oldest, const DeletionFacts& facts, Context& context) {
  const StoredStep* begun = Find(facts.steps, facts.begun);
  const bool go_on = begun != nullptr && begun->id > oldest && Stands(*begun, facts);
  successor_ = go_on ? begun->id : *Newest(facts);  // there is one: victims without it need no proof
  if (facts.agents_prove) {
    op_ = ++context.last_op;
    return;
  }
  VerifyStep request;
  request.id = successor_;
  op_ = context.Request(request);
}

void Deleter::LookAtPins(const DeletionFacts& facts, Context& context) {
  const auto pinned = [](const StoredStep& step) { return step.pinned; };
  if (look_due_ && !look_rests_ && std::any_of(facts.steps.begin(), facts.steps.end(), pinned)) {
    look_due_ = false;
    to_look_ = Surplus(facts, context.config.retention, /*pinned=*/true);
    look_rests_ = !to_look_.empty();
    if (look_rests_) context.Emit(StartTimer{TimerKind::kPins, attempt_, kPinRest});
  }
  if (to_look_.empty()) return;
  LookAtPin request;
  request.id = victim_ = to_look_.back();
  to_look_.pop_back();
  op_ = context.Request(request);
}

// One that cannot be looked at is believed to be pinned until the next time.
std::optional<SnapshotId> Deleter::On(const PinLooked& event) {
  if (event.op != op_ || op_ == 0) return std::nullopt;
  op_ = 0;
  if (!event.status.ok() || event.pinned) return std::nullopt;
  return victim_;
}

void Deleter::On(const StepVerified& event, Context& context) {
  if (event.op == op_ && op_ != 0) Proved(event.status, context);
}

void Deleter::Proved(const absl::Status& status, Context& context) {
  if (successor_.none()) return;
  op_ = 0;
  const SnapshotId read = std::exchange(successor_, {});
  if (status.ok()) {
    verified_.insert(read);
  } else if (CodeOf(status) == ErrorCode::CORRUPT) {
    damaged_[read] = IsDamaged(read, status, context);  // an older one may be whole; nothing behind it was deleted
  } else {
    StorageFailed(status, context);
  }
}

void Deleter::Mark(bool remains, Context& context) {
  if (!context.config.rules.deletion_marker) return AfterMarker(context);
  PutMarker request;
  request.id = victim_;
  request.attempt = attempt_;
  request.remains = remains;
  op_ = context.Request(request);
}

std::optional<SnapshotId> Deleter::On(const MarkerPut& event, Context& context) {
  if (event.op != op_ || op_ == 0) return std::nullopt;
  op_ = 0;
  if (Failed(event.status, context)) return std::nullopt;
  if (event.pinned || event.whole != 0) {
    marked_.erase(victim_);
    return victim_;
  }
  marked_.insert(victim_);
  AfterMarker(context);
  return std::nullopt;
}

bool Deleter::Deletes(const SnapshotId& id) const {
  const bool now = op_ != 0 && successor_.none() && victim_ == id;
  return now || marked_.count(id) != 0;
}

void Deleter::AfterMarker(Context& context) {
  if (context.config.rules.check_after_marker) {
    op_ = context.Request(CheckNewest{});
    return;
  }
  DeleteStep request;
  request.id = victim_;
  op_ = context.Request(request);
}

Deleter::Outcome Deleter::On(const NewestChecked& event, Context& context) {
  if (event.op != op_ || op_ == 0) return Outcome::kNothing;
  op_ = 0;
  if (!event.status.ok()) {
    StorageFailed(event.status, context);
    return Outcome::kNothing;
  }
  if (event.newest > attempt_) return Outcome::kHigherAttempt;
  DeleteStep request;
  request.id = victim_;
  op_ = context.Request(request);
  return Outcome::kNothing;
}

std::optional<SnapshotId> Deleter::On(const StepDeleted& event, Context& context) {
  if (event.op != op_ || op_ == 0) return std::nullopt;
  op_ = 0;
  if (Failed(event.status, context)) return std::nullopt;
  Answer(absl::OkStatus(), context);
  verified_.erase(victim_);
  marked_.erase(victim_);
  damaged_.erase(victim_);
  undeleted_.erase(victim_);
  return victim_;
}

// Those who asked for the victim.
void Deleter::Answer(const absl::Status& status, Context& context) {
  std::erase_if(asked_, [&](const Asked& asked) {
    if (asked.id == victim_) context.Emit(DeleteEnded{asked.request, status});
    return asked.id == victim_;
  });
}

// The victim rests, and the others go.
bool Deleter::Failed(const absl::Status& status, Context& context) {
  if (status.ok()) return false;
  if (FailsForAll(status)) {
    StorageFailed(status, context);
    return true;
  }
  const absl::Status why = CannotBeDeleted(victim_, status, context);
  Answer(why, context);
  if (undeleted_.empty()) context.Emit(StartTimer{TimerKind::kUndeleted, attempt_, kUndeletedRest});
  undeleted_[victim_] = why;
  return true;
}

void Deleter::StorageFailed(const absl::Status& status, Context& context) {
  failure_ = status;
  context.Emit(StartTimer{TimerKind::kRetry, attempt_, context.config.retry});
  for (const Asked& asked : std::exchange(asked_, {}))
    context.Emit(DeleteEnded{asked.request, CannotBeDeleted(asked.id, status, context)});
}

void Deleter::Rested(TimerKind kind) {
  if (kind == TimerKind::kPins) look_rests_ = false;
  if (kind == TimerKind::kUndeleted) undeleted_.clear();
}

absl::Status Deleter::damage() const {
  if (damaged_.empty()) return absl::OkStatus();
  const auto& [id, why] = *damaged_.rbegin();
  const bool past = !verified_.empty() && *verified_.rbegin() > id;
  return past ? absl::OkStatus() : why;
}

absl::Status Deleter::undeleted() const { return undeleted_.empty() ? absl::OkStatus() : undeleted_.begin()->second; }

void Deleter::Leave(const absl::Status& why, Context& context) {
  for (const Asked& asked : std::exchange(asked_, {})) context.Emit(DeleteEnded{asked.request, why});
  if (!successor_.none()) op_ = 0;
  successor_ = {};
}

void Keep(const MarkerPut& event, StoredStep* step) {
  step->pinned = step->pinned || event.pinned;
  if (event.whole != 0) step->world_size = step->sidecars = event.whole;
}

}  // namespace ckptd::job
