// Deletion that cannot take the last good checkpoint (protocol.md, "Delete Y"). For each victim Y:
//
//   1. a newer Z on the lineage is committed, and was re-read and verified: by the agents of its ranks (proofs.h), or,
//      where nobody coordinates the job, by this deleter
//   2. marker `deleting` with our attempt: from now on listings skip Y, and nobody takes it from memory either
//   3. our attempt is still the newest; else we stop. (An attempt that was opened before the marker may have chosen Y;
//      its decision voids the marker. The marker stays, as if we had been killed here: who takes it away may take away
//      that of a newer attempt, which is deleting Y already.)
//   4. manifest, then files
//
// Victims of retention: committed steps on the lineage behind the ones to keep, what a killed deleter had marked, and
// leftovers without a manifest that are older than Z. Remains, which are not whole and never will be, go without a Z:
// those of attempts that history has left, and those that nobody can write to the end any more, since a rank dropped
// the step, or its storage was full, when another had written its part (remains.cc). They would fill the storage for
// good. The storage looks once more before it marks them: what is whole stays. Steps off the lineage that are committed
// go only by request. Pinned steps never go; of those that would go otherwise the pins are looked at after a commit,
// but not more often than once a minute: whoever unpins on another node tells the storage only.
//
// The oldest victim goes first, and any verified Z behind it will do: a backlog drains with one step read back, not
// with one for each, also when steps are committed faster than they can be read.
//
// A victim whose files cannot be marked or deleted rests for some minutes, and the others go meanwhile. Where the
// storage as a whole fails, all wait for a moment. Whoever asked hears either.
#ifndef CKPTD_DAEMON_JOB_DELETION_H_
#define CKPTD_DAEMON_JOB_DELETION_H_

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/job/context.h"

namespace ckptd::job {

// What is known when the next victim is chosen.
struct DeletionFacts {
  const std::vector<StoredStep>& steps;  // as listed, kept up to date; a void marker counts as none
  const v1::DecisionRecord& decision;    // whose lineage it is
  SnapshotId watermark;
  std::function<bool(const SnapshotId&)> sealed;  // in a slot of some agent: its flush may be under way
  std::function<bool(const SnapshotId&)> over;    // what the storage lacks of it now, nobody will ever write
  bool agents_prove = false;                      // what proving() names is read by others: Proved() tells
  SnapshotId begun = {};                          // parts of it may be proven already
};

inline constexpr Nanos kPinRest = std::chrono::minutes(1);
inline constexpr Nanos kUndeletedRest = std::chrono::minutes(5);

class Deleter {
 public:
  enum class Outcome { kNothing, kHigherAttempt };

  // After Leave(): nobody is answered here.
  void Reset(AttemptId attempt);

  // Operator's request. Answered by DeleteEnded, at once when it is refused.
  void Request(const DeleteRequested& event, const DeletionFacts& facts, Context& context);

  // To be called after each event: begins the next thing when nothing is under way. Requests come first; retention
  // only with `retention`.
  void Work(const DeletionFacts& facts, bool retention, Context& context);

  void On(const StepVerified& event, Context& context);
  // The step that is to be read back by the agents now; none: nothing is.
  [[nodiscard]] const SnapshotId& proving() const { return successor_; }
  void Proved(const absl::Status& status, Context& context);
  // Gives the step that stays, since it is pinned or whole: see Keep.
  std::optional<SnapshotId> On(const MarkerPut& event, Context& context);
  Outcome On(const NewestChecked& event, Context& context);
  // Gives the step that is gone.
  std::optional<SnapshotId> On(const StepDeleted& event, Context& context);
  // Gives the step that is pinned no more.
  std::optional<SnapshotId> On(const PinLooked& event);
  // A step was: what was kept until now may go.
  void Committed() { look_due_ = true; }
  // The timer kPins or kUndeleted has fired.
  void Rested(TimerKind kind);
  void Retry() { failure_ = absl::OkStatus(); }
  // The attempt is left: requests end with an error, and nothing is waited for.
  void Leave(const absl::Status& why, Context& context);

  // Not OK: the storage failed, and nothing goes on before Retry().
  [[nodiscard]] const absl::Status& failure() const { return failure_; }
  // Why the oldest of the victims that rest could not be deleted. OK: none rests.
  [[nodiscard]] absl::Status undeleted() const;
  // What is wrong with the newest step that was read back. OK: nothing.
  [[nodiscard]] absl::Status damage() const;
  [[nodiscard]] bool idle() const { return op_ == 0; }
  // It is being marked or deleted, or what a deletion that failed has left: not to be committed.
  [[nodiscard]] bool Deletes(const SnapshotId& id) const;

 private:
  struct Asked {
    SnapshotId id;
    uint64_t request = 0;
  };

  [[nodiscard]] bool Stands(const StoredStep& step, const DeletionFacts& facts) const;
  [[nodiscard]] std::optional<SnapshotId> Newest(const DeletionFacts& facts) const;
  [[nodiscard]] bool Proven(const SnapshotId& victim, const DeletionFacts& facts, const Context& context) const;
  [[nodiscard]] absl::Status MayGo(const SnapshotId& id, const DeletionFacts& facts, const Context& context) const;
  [[nodiscard]] std::vector<SnapshotId> Surplus(const DeletionFacts& facts, const Retention& retention,
                                                bool pinned = false) const;
  [[nodiscard]] bool LetGo(const StoredStep& step, uint32_t newer, const DeletionFacts& facts,
                           const Retention& retention) const;
  void RefuseWhatMayNotGo(const DeletionFacts& facts, Context& context);
  void Verify(const SnapshotId& oldest, const DeletionFacts& facts, Context& context);
  void LookAtPins(const DeletionFacts& facts, Context& context);
  void Mark(bool remains, Context& context);
  void AfterMarker(Context& context);
  void Answer(const absl::Status& status, Context& context);
  bool Failed(const absl::Status& status, Context& context);
  void StorageFailed(const absl::Status& status, Context& context);

  AttemptId attempt_ = 0;
  OpId op_ = 0;  // under way; 0 = none
  SnapshotId victim_;
  SnapshotId successor_;  // being verified; none = op_ is another thing
  std::set<SnapshotId> verified_;
  std::map<SnapshotId, absl::Status> damaged_;
  std::set<SnapshotId> marked_;  // by this deleter, and not gone: what is left of them is no checkpoint
  std::map<SnapshotId, absl::Status> undeleted_;  // these rest, each for its reason
  std::vector<Asked> asked_;
  std::vector<SnapshotId> to_look_;  // believed pinned
  bool look_due_ = false;
  bool look_rests_ = false;  // until kPins
  absl::Status failure_;
};

// Takes note of why it was not marked.
void Keep(const MarkerPut& event, StoredStep* step);

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_DELETION_H_
