// What became of the steps that the running process saved in its attempt, in the words of NEWS.
//
//   captured     W was this step
//   protected    P was this step; it may be so after it was durable or superseded, and then is both
//   durable      it was the newest committed step
//   DROPPED      will not be captured: below G while W never was this step, or its capture ended unsealed. (It may be
//                kept nevertheless: on storage, where all ranks had flushed it; captured, when the agent restarts and
//                with it G begins anew.)
//   SUPERSEDED   was captured, and nobody has to wait for it on storage: its slot was freed before it was flushed, or a
//                newer step is durable. (A rank that is slower may still write it.)
//
// W, G and the newest durable step only rise, so what lies below them is settled. But only who has seen all of them
// knows which steps they were: an agent speaks of steps that it sealed itself, and of those before its own start only
// of W and the newest durable one, which the coordinator names; the agent before may have ended without telling. Of
// older ones, captured or not, durable or not, it says nothing.
//
// NEWS repeats the last of them, because a full socket drops it.
#ifndef CKPTD_DAEMON_SNAPSHOT_OUTCOMES_H_
#define CKPTD_DAEMON_SNAPSHOT_OUTCOMES_H_

#include <vector>

#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "proto/local/messages.h"

namespace ckptd::snapshot {

// A plain value.
class Outcomes {
 public:
  Outcomes() { list_.reserve(kMaxOutcomes); }

  void Clear();
  // This rank has sealed `step`.
  void Sealed(StepId step) { Obtain(step); }
  // Its capture ended, and this rank has not sealed it.
  void Dropped(StepId step, ErrorCode why);
  // It was captured, and its slot was freed before it was flushed.
  void Superseded(StepId step);
  // What the coordinator says: W, the newest durable step and P, 0 where they are not of this attempt, and G.
  void Settle(StepId captured, StepId durable, StepId floor, StepId protected_step = 0);

  // At most kMaxOutcomes; the one that was heard of last is the last.
  [[nodiscard]] const std::vector<StepOutcome>& list() const { return list_; }
  // Whether something is to be told since the last call.
  bool TakeNews();

 private:
  StepOutcome* Find(StepId step);
  StepOutcome& Obtain(StepId step);
  void Set(StepOutcome& outcome, uint32_t flags, ErrorCode why);
  void SetProtected(StepOutcome& outcome);
  static uint32_t Protected(const StepOutcome& outcome);

  std::vector<StepOutcome> list_;
  bool news_ = false;
};

}  // namespace ckptd::snapshot

#endif  // CKPTD_DAEMON_SNAPSHOT_OUTCOMES_H_
