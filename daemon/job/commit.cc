#include "daemon/job/commit.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::job {

bool NeverCommits(const absl::Status& status) { return absl::IsNotFound(status) || absl::IsDataLoss(status); }

void Committer::Reset(AttemptId attempt, uint32_t world_size, const SnapshotId& durable) {
  *this = Committer();
  attempt_ = attempt;
  world_size_ = world_size;
  durable_ = durable;
}

void Committer::Offer(const SnapshotId& id, bool known) {
  if (known || done_.count(id) != 0) return;
  waiting_.try_emplace(id);
}

void Committer::Work(Context& context) {
  if (op_ != 0 || blocked_ || waiting_.empty()) return;
  current_ = Next();
  CreateManifest request;
  request.id = current_;
  request.world_size = world_size_;
  op_ = context.Request(request);
}

SnapshotId Committer::Next() const {
  for (const auto& [id, failure] : waiting_) {
    if (failure.ok()) return id;  // not tried yet
  }
  const auto next = waiting_.upper_bound(failed_);
  return (next == waiting_.end() ? waiting_.begin() : next)->first;
}

Committer::Outcome Committer::On(const ManifestCreated& event, Context& context) {
  if (event.op != op_ || op_ == 0) return Outcome::kNothing;
  op_ = 0;
  if (!event.status.ok()) return Fail(event.status, context);
  if (!context.config.rules.newest_check_after_manifest) return Finish();
  op_ = context.Request(CheckNewest{});
  return Outcome::kNothing;
}

Committer::Outcome Committer::On(const NewestChecked& event, Context& context) {
  if (event.op != op_ || op_ == 0) return Outcome::kNothing;
  op_ = 0;
  if (!event.status.ok()) return Fail(event.status, context);
  return event.newest > attempt_ ? Outcome::kHigherAttempt : Finish();
}

Committer::Outcome Committer::Finish() {
  waiting_.erase(current_);
  done_.insert(current_);
  durable_ = std::max(durable_, current_);
  lost_ = absl::OkStatus();
  return Outcome::kDurable;
}

Committer::Outcome Committer::Fail(const absl::Status& status, Context& context) {
  const absl::Status why = Error(CodeOf(status), absl::StrCat("job ", context.config.job, ": step ", current_.step,
                                                              " cannot be committed: ", status.message()));
  if (NeverCommits(status)) {
    waiting_.erase(current_);
    done_.insert(current_);
    lost_ = why;
    return Outcome::kFailed;
  }
  waiting_[current_] = why;
  failed_ = current_;
  blocked_ = true;
  context.Emit(StartTimer{TimerKind::kRetry, attempt_, context.config.retry});
  return Outcome::kFailed;
}

absl::Status Committer::failure() const {
  for (const auto& [id, failure] : waiting_) {
    if (!failure.ok()) return failure;
  }
  return lost_;
}

}  // namespace ckptd::job
