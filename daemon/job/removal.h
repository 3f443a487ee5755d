// Deletion by hand when nobody coordinates the job (protocol.md: "rm without a live coordinator: the agent opens an
// attempt that is never decided"):
//
//   LOOK ► READ the newest record ► CREATE record n + 1 exclusively ► LIST again ► Deleter: verify, mark, check, delete
//
// The record takes the right to delete from every older coordinator, and from this one as soon as a restore() opens a
// higher attempt: the check after the marker sees it, the marker goes away, and nothing was deleted. Without a decision
// the attempt has no snapshots and no place on the lineage; the history is that of the newest decided one, and all of
// it counts: no run stands on its parent. So an attempt that was opened and has not decided yet is not overtaken: its
// late decision would be the newest, and could name what goes here. The record's rank-0 ticket is 0, so an agent that
// starts does not wait for its ranks. A look comes first so that a request that is refused anyway leaves no record.
//
// Pure: one request at a time goes out, the owner does it and feeds the answer. Whether a coordinator lives on this
// agent is the owner's to know: it answers CreateAttempt with an error when one does.
#ifndef CKPTD_DAEMON_JOB_REMOVAL_H_
#define CKPTD_DAEMON_JOB_REMOVAL_H_

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "daemon/job/context.h"
#include "daemon/job/deletion.h"

namespace ckptd::job {

class Removal {
 public:
  struct Wanted {
    std::vector<SnapshotId> steps;
    AttemptId seen = 0;      // highest attempt this agent knows of
    bool take_over = false;  // also when another agent coordinates the newest attempt: it is fenced
  };
  // Of `config`: job, agent, rules.
  Removal(Config config, Wanted wanted);

  // First. Appends one request, or none when nothing was wanted.
  void Begin(Effects& effects);
  // The answer to the last request. Appends the next one, or none: ended().
  void Step(const Event& answer, Effects& effects);

  [[nodiscard]] bool ended() const { return results_.size() == wanted_.steps.size(); }
  // OK: gone from storage.
  [[nodiscard]] const std::map<SnapshotId, absl::Status>& results() const { return results_; }

 private:
  enum class Stage { kLooking, kReading, kCreating, kListing, kDeleting };

  void On(const Listed& event);
  void On(const NewestRead& event);
  void On(const AttemptCreated& event);
  void On(const StepVerified& event) { deleter_.On(event, context_); }
  void On(const MarkerPut& event);
  void On(const NewestChecked& event);
  void On(const StepDeleted& event);
  template <typename T>
  void On(const T&) {}  // not an answer

  void Ask();
  void TakeAnswers(Effects* effects);
  void End(const absl::Status& why);  // for all that have no result yet
  // Nobody trains, so no slot is being flushed. What agents have in memory is not known.
  [[nodiscard]] DeletionFacts Facts() const {
    const auto no = [](const SnapshotId&) { return false; };
    return {steps_, history_, {}, no, no};
  }

  Context context_;
  Wanted wanted_;
  Stage stage_ = Stage::kLooking;
  AttemptId attempt_ = 0;
  std::vector<StoredStep> steps_;
  v1::DecisionRecord history_;  // as if the next attempt went on from the newest there is
  Deleter deleter_;
  std::map<SnapshotId, absl::Status> results_;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_REMOVAL_H_
