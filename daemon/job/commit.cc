#include "daemon/job/commit.h"

#include <algorithm>

namespace ckptd::job {

void Committer::Reset(AttemptId attempt, const SnapshotId& durable) {
  *this = Committer();
  attempt_ = attempt;
  durable_ = durable;
}

void Committer::Offer(const SnapshotId& id, bool known) {
  if (known || done_.count(id) != 0 || id == current_) return;
  waiting_.insert(id);
}

void Committer::Work(Context& context) {
  if (op_ != 0 || blocked_ || waiting_.empty()) return;
  current_ = *waiting_.begin();  // in their order: each is told as durable before the next
  waiting_.erase(current_);
  CreateManifest request;
  request.id = current_;
  op_ = context.Request(request);
}

Committer::Outcome Committer::On(const ManifestCreated& event, Context& context) {
  if (event.op != op_ || op_ == 0) return Outcome::kNothing;
  op_ = 0;
  // It was deleted, never was whole, or its parts do not belong together: nothing will commit it, and those behind it
  // must not wait for it.
  if (absl::IsNotFound(event.status) || absl::IsDataLoss(event.status)) {
    done_.insert(current_);
    current_ = {};
    return Outcome::kNothing;
  }
  if (!event.status.ok()) {
    Fail(context);
    return Outcome::kNothing;
  }
  if (!context.config.rules.newest_check_after_manifest) return Finish();
  op_ = context.Request(CheckNewest{});
  return Outcome::kNothing;
}

Committer::Outcome Committer::On(const NewestChecked& event, Context& context) {
  if (event.op != op_ || op_ == 0) return Outcome::kNothing;
  op_ = 0;
  if (!event.status.ok()) {
    Fail(context);
    return Outcome::kNothing;
  }
  return event.newest > attempt_ ? Outcome::kHigherAttempt : Finish();
}

Committer::Outcome Committer::Finish() {
  done_.insert(current_);
  durable_ = std::max(durable_, current_);
  return Outcome::kDurable;
}

void Committer::Fail(Context& context) {
  waiting_.insert(current_);
  current_ = {};
  blocked_ = true;
  context.Emit(StartTimer{TimerKind::kRetry, attempt_, context.config.retry});
}

}  // namespace ckptd::job
