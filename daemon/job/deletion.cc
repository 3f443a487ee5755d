#include "daemon/job/deletion.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/job/lineage.h"

namespace ckptd::job {

void Deleter::Reset(AttemptId attempt) {
  *this = Deleter();
  attempt_ = attempt;
}

std::optional<SnapshotId> Deleter::Successor(const std::vector<StoredStep>& steps,
                                             const v1::DecisionRecord& decision) const {
  std::optional<SnapshotId> newest;
  for (const StoredStep& step : steps) {
    if (!step.committed || step.marker != 0 || damaged_.count(step.id) != 0) continue;
    if (OnLineage(decision, step.id) && (!newest || step.id > *newest)) newest = step.id;
  }
  return newest;
}

std::optional<SnapshotId> Deleter::Victim(const std::vector<StoredStep>& steps, const v1::DecisionRecord& decision,
                                          const SnapshotId& watermark, const Retention& retention) const {
  std::vector<const StoredStep*> newest_first;
  for (const StoredStep& step : steps) newest_first.push_back(&step);
  std::sort(newest_first.begin(), newest_first.end(), [](const auto* a, const auto* b) { return a->id > b->id; });
  uint32_t kept = 0;
  for (const StoredStep* step : newest_first) {
    const bool history = OnLineage(decision, step->id);
    if (step->id >= successor_ || step->id == watermark || step->id == ToId(decision.parent())) {
      kept += history && step->committed && damaged_.count(step->id) == 0 ? 1 : 0;
      continue;
    }
    if (step->pinned) continue;
    if (requests_.count(step->id) != 0) return step->id;
    if (step->committed && history) {
      const bool every = retention.keep_every != 0 && step->id.step % retention.keep_every == 0;
      if (kept++ < std::max(retention.keep_last, 1u) || every) continue;
      return step->id;
    }
    if (!step->committed) return step->id;
  }
  return std::nullopt;
}

void Deleter::Plan(const std::vector<StoredStep>& steps, const v1::DecisionRecord& decision,
                   const SnapshotId& watermark, Context& context) {
  if (op_ != 0 || blocked_) return;
  const std::optional<SnapshotId> successor = Successor(steps, decision);
  if (!successor) return;
  successor_ = *successor;
  const std::optional<SnapshotId> victim = Victim(steps, decision, watermark, context.config.retention);
  if (!victim) return;
  victim_ = *victim;
  if (verified_.count(successor_) != 0 || !context.config.rules.verify_before_delete) return Mark(context);
  VerifyStep request;
  request.id = successor_;
  op_ = context.Request(request);
}

void Deleter::Request(const DeleteRequested& event, const std::vector<StoredStep>& steps,
                      const v1::DecisionRecord& decision, Context& context) {
  const StoredStep* found = nullptr;  // on the lineage, else the newest attempt's
  for (const StoredStep& step : steps) {
    if (step.id.step != event.step) continue;
    if (found == nullptr || OnLineage(decision, step.id) || !OnLineage(decision, found->id)) found = &step;
  }
  const std::string name = absl::StrCat("job ", context.config.job, ": step ", event.step);
  absl::Status refused;
  const std::optional<SnapshotId> successor = Successor(steps, decision);
  if (found == nullptr) {
    refused = Error(ErrorCode::NOT_FOUND, absl::StrCat(name, " is not on the storage"));
  } else if (found->pinned) {
    refused = Error(ErrorCode::REFUSED, absl::StrCat(name, " is pinned: ckptctl unpin first"));
  } else if (!successor || found->id >= *successor || found->id == ToId(decision.parent())) {
    refused = Error(ErrorCode::REFUSED, absl::StrCat(name,
                                                     " has no newer committed successor, or the run started "
                                                     "from it: it may be the last good checkpoint"));
  }
  if (!refused.ok()) return context.Emit(DeleteEnded{event.request, refused});
  requests_[found->id] = event.request;
}

Deleter::Outcome Deleter::On(const StepVerified& event, Context& context) {
  if (event.op != op_ || op_ == 0) return Outcome::kNothing;
  op_ = 0;
  if (event.status.ok()) {
    verified_.insert(successor_);
    Mark(context);
  } else if (CodeOf(event.status) == ErrorCode::CORRUPT) {
    damaged_.insert(successor_);  // an older one may be whole; nothing behind a damaged one was deleted
    last_error_ = std::string(event.status.message());
  } else {
    Failed(event.status, context);
  }
  return Outcome::kNothing;
}

void Deleter::Mark(Context& context) {
  if (!context.config.rules.deletion_marker) return AfterMarker(context);
  PutMarker request;
  request.id = victim_;
  request.attempt = attempt_;
  op_ = context.Request(request);
}

Deleter::Outcome Deleter::On(const MarkerPut& event, Context& context) {
  if (event.op != op_ || op_ == 0) return Outcome::kNothing;
  op_ = 0;
  if (!Failed(event.status, context)) AfterMarker(context);
  return Outcome::kNothing;
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
  if (Failed(event.status, context)) return Outcome::kNothing;
  if (event.newest > attempt_) {
    RemoveMarker request;
    request.id = victim_;
    op_ = context.Request(request);
    return Outcome::kHigherAttempt;
  }
  DeleteStep request;
  request.id = victim_;
  op_ = context.Request(request);
  return Outcome::kNothing;
}

Deleter::Outcome Deleter::On(const MarkerRemoved& event) {
  if (event.op == op_) op_ = 0;
  return Outcome::kNothing;
}

std::optional<SnapshotId> Deleter::On(const StepDeleted& event, Context& context) {
  if (event.op != op_ || op_ == 0) return std::nullopt;
  op_ = 0;
  if (Failed(event.status, context)) return std::nullopt;
  if (const auto it = requests_.find(victim_); it != requests_.end()) {
    context.Emit(DeleteEnded{it->second, absl::OkStatus()});
    requests_.erase(it);
  }
  return victim_;
}

bool Deleter::Failed(const absl::Status& status, Context& context) {
  if (status.ok()) return false;
  last_error_ = std::string(status.message());
  blocked_ = true;
  context.Emit(StartTimer{TimerKind::kRetry, attempt_, context.config.retry});
  return true;
}

void Deleter::Stop(const absl::Status& why, Context& context) {
  for (const auto& [id, request] : requests_) context.Emit(DeleteEnded{request, why});
  requests_.clear();
}

}  // namespace ckptd::job
