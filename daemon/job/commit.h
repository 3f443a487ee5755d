// From "every rank's part is on storage" to "durable": create the manifest, *then* look whether this attempt is still
// the newest, and only then say durable. Without the second look a coordinator that was cut off could report a step of
// a history that a newer attempt has already left. What the manifest holds depends on the sidecars only, so losing the
// race for its name is success. One step at a time, oldest first, so that each is told as durable.
//
// One that fails holds up no later one: it is tried again when all that came after it was tried, and the failed ones
// take turns. Durable is the newest that was committed. What is committed after a newer one moves it no more.
#ifndef CKPTD_DAEMON_JOB_COMMIT_H_
#define CKPTD_DAEMON_JOB_COMMIT_H_

#include <functional>
#include <map>
#include <set>

#include "daemon/job/context.h"

namespace ckptd::job {

// What CreateManifest says of a step that was deleted, never was whole, or whose parts do not belong together.
[[nodiscard]] bool NeverCommits(const absl::Status& status);

class Committer {
 public:
  enum class Outcome { kNothing, kDurable, kFailed, kHigherAttempt };

  void Reset(AttemptId attempt, uint32_t world_size, const SnapshotId& durable);

  // All parts and sidecars of `id` exist. `known` = it has a manifest already.
  void Offer(const SnapshotId& id, bool known);

  // Of what is done, forgets what is `gone`: it will not be offered again.
  void Forget(const std::function<bool(const SnapshotId&)>& gone) { std::erase_if(done_, gone); }

  // Starts the next request unless one is under way.
  void Work(Context& context);

  // kDurable and kFailed are about id(). What failed may be committed later, or never.
  Outcome On(const ManifestCreated& event, Context& context);
  Outcome On(const NewestChecked& event, Context& context);
  void Retry() { blocked_ = false; }

  [[nodiscard]] bool idle() const { return op_ == 0 && waiting_.empty(); }
  [[nodiscard]] const SnapshotId& id() const { return current_; }
  [[nodiscard]] const SnapshotId& durable() const { return durable_; }
  // Why the oldest that is tried again was not committed; or the last that never will be, until one is. OK: neither.
  [[nodiscard]] absl::Status failure() const;

 private:
  [[nodiscard]] SnapshotId Next() const;
  Outcome Fail(const absl::Status& status, Context& context);
  Outcome Finish();

  AttemptId attempt_ = 0;
  uint32_t world_size_ = 0;  // also of its parent
  OpId op_ = 0;              // under way; 0 = none
  SnapshotId current_;
  SnapshotId durable_;
  std::map<SnapshotId, absl::Status> waiting_;  // each with why it failed when it was tried last
  std::set<SnapshotId> done_;
  SnapshotId failed_;     // last
  absl::Status lost_;     // why the last that is not tried again was not committed
  bool blocked_ = false;  // after a failure, until Retry()
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_COMMIT_H_
