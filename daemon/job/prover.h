// Reads back the parts of a committed step whose ranks this agent has, when the coordinator asks for it
// (State.to_prove, because it wants to delete older ones), and says what it found (Report.proof). Where the coordinator
// is on this agent it needs no REPORT.
//
// One part after the other. A part that is right is not read again, in later attempts neither, until another step is
// asked for. One that is damaged is told until the attempt ends, and then read again: somebody may have mended it. One
// that could not be read is read again after a while.
#ifndef CKPTD_DAEMON_JOB_PROVER_H_
#define CKPTD_DAEMON_JOB_PROVER_H_

#include <map>
#include <set>

#include "daemon/job/context.h"

namespace ckptd::job {

class Prover {
 public:
  explicit Prover(Context* context) : context_(*context) {}

  // What `state` asks of this agent is read, and nothing else any more.
  void Follow(const v1::State& state);
  // False: nobody waits for it.
  bool On(const RankVerified& event);
  // The timer kProve has fired.
  void Rested();
  // What is read is not read on. The next State may ask for it again.
  void End();

  // What was found of the step that is asked for; of no step: nothing was, or nothing is asked for.
  [[nodiscard]] v1::Proof Proof() const;

 private:
  void Begin(const SnapshotId& step, AttemptId attempt);
  void Next();

  Context& context_;
  SnapshotId step_;  // asked for last
  uint32_t world_size_ = 0;
  AttemptId attempt_ = 0;  // that asked for it
  std::set<Rank> asked_;   // empty: nothing is asked for
  std::set<Rank> right_;
  std::map<Rank, absl::Status> bad_;
  Rank reading_ = 0;
  OpId op_ = 0;         // reads `reading_`; 0 = nothing is read
  bool rests_ = false;  // until kProve
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_PROVER_H_
