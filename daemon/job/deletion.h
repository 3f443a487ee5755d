// Deletion that cannot take the last good checkpoint (protocol.md, "Delete Y"). For each victim Y:
//
//   1. a newer Z on the lineage is committed, and was re-read and verified by this coordinator
//   2. marker `deleting` with our attempt: from now on listings skip Y
//   3. our attempt is still the newest; else the marker is taken away and we stop. (An attempt that was opened before
//      the marker may have chosen Y; its decision also voids the marker.)
//   4. manifest, then files
//
// Victims by retention: committed steps on the lineage behind the ones to keep, and leftovers without a manifest that
// are older than Z. Steps off the lineage go only by request. Pinned steps never go.
#ifndef CKPTD_DAEMON_JOB_DELETION_H_
#define CKPTD_DAEMON_JOB_DELETION_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/job/context.h"

namespace ckptd::job {

class Deleter {
 public:
  enum class Outcome { kNothing, kHigherAttempt };

  void Reset(AttemptId attempt);

  // Everything listed, kept up to date by the coordinator; `decision` is the present attempt's.
  void Plan(const std::vector<StoredStep>& steps, const v1::DecisionRecord& decision, const SnapshotId& watermark,
            Context& context);

  // Operator's request for `step`. Answered by DeleteEnded, at once when it is refused.
  void Request(const DeleteRequested& event, const std::vector<StoredStep>& steps, const v1::DecisionRecord& decision,
               Context& context);

  Outcome On(const StepVerified& event, Context& context);
  Outcome On(const MarkerPut& event, Context& context);
  Outcome On(const NewestChecked& event, Context& context);
  Outcome On(const MarkerRemoved& event);
  // Gives the step that is gone.
  std::optional<SnapshotId> On(const StepDeleted& event, Context& context);
  void Retry() { blocked_ = false; }
  // Requests under way end with an error.
  void Stop(const absl::Status& why, Context& context);

  [[nodiscard]] const std::string& last_error() const { return last_error_; }

 private:
  [[nodiscard]] std::optional<SnapshotId> Successor(const std::vector<StoredStep>& steps,
                                                    const v1::DecisionRecord& decision) const;
  [[nodiscard]] std::optional<SnapshotId> Victim(const std::vector<StoredStep>& steps,
                                                 const v1::DecisionRecord& decision, const SnapshotId& watermark,
                                                 const Retention& retention) const;
  void Mark(Context& context);
  void AfterMarker(Context& context);
  bool Failed(const absl::Status& status, Context& context);

  AttemptId attempt_ = 0;
  OpId op_ = 0;  // under way; 0 = none
  SnapshotId victim_;
  SnapshotId successor_;
  std::set<SnapshotId> verified_;
  std::set<SnapshotId> damaged_;
  std::map<SnapshotId, uint64_t> requests_;
  bool blocked_ = false;
  std::string last_error_;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_DELETION_H_
