#include "daemon/snapshot/outcomes.h"

#include <algorithm>
#include <utility>

namespace ckptd::snapshot {

void Outcomes::Clear() {
  list_.clear();
  news_ = false;
}

void Outcomes::Dropped(StepId step, ErrorCode why) {
  if (step == 0) return;
  StepOutcome& outcome = Obtain(step);
  if (outcome.flags == 0) Set(outcome, kStepDropped, why);
}

void Outcomes::Superseded(StepId step) {
  StepOutcome& outcome = Obtain(step);
  if ((outcome.flags & kStepDurable) == 0) Set(outcome, kStepCaptured | Protected(outcome), ErrorCode::SUPERSEDED);
}

void Outcomes::Settle(StepId captured, StepId durable, StepId floor, StepId protected_step) {
  if (durable != 0) {
    StepOutcome& outcome = Obtain(durable);
    Set(outcome, kStepCaptured | kStepDurable | Protected(outcome), ErrorCode::OK);
  }
  // W is the newest, but for a while after a restart of the coordinator: an older step that it names then may have been
  // durable long ago.
  StepOutcome* newest = captured > durable ? &Obtain(captured) : Find(captured);
  if (newest != nullptr && newest->flags == 0) Set(*newest, kStepCaptured, ErrorCode::OK);
  if (protected_step != 0) SetProtected(Obtain(protected_step));
  for (StepOutcome& outcome : list_) {
    const bool passed_over = outcome.flags == 0 && outcome.step < floor;
    if (passed_over) Set(outcome, kStepDropped, ErrorCode::BELOW_FLOOR);
    const bool overtaken = (outcome.flags & ~kStepProtected) == kStepCaptured && outcome.step < durable;
    if (overtaken) Set(outcome, outcome.flags, ErrorCode::SUPERSEDED);
  }
}

// What was durable or superseded before stays so.
void Outcomes::SetProtected(StepOutcome& outcome) {
  const bool dropped = (outcome.flags & kStepDropped) != 0;
  const auto why = dropped ? ErrorCode::OK : static_cast<ErrorCode>(outcome.code);
  Set(outcome, (outcome.flags & ~kStepDropped) | kStepCaptured | kStepProtected, why);
}

uint32_t Outcomes::Protected(const StepOutcome& outcome) { return outcome.flags & kStepProtected; }

bool Outcomes::TakeNews() { return std::exchange(news_, false); }

StepOutcome* Outcomes::Find(StepId step) {
  const auto found = std::find_if(list_.begin(), list_.end(), [step](const auto& known) { return known.step == step; });
  return found == list_.end() ? nullptr : &*found;
}

StepOutcome& Outcomes::Obtain(StepId step) {
  if (StepOutcome* known = Find(step)) return *known;
  if (list_.size() == kMaxOutcomes) list_.erase(list_.begin());
  return list_.emplace_back(StepOutcome{step, 0, 0});
}

void Outcomes::Set(StepOutcome& outcome, uint32_t flags, ErrorCode why) {
  const auto code = static_cast<uint32_t>(why);
  if (outcome.flags == flags && outcome.code == code) return;
  outcome.flags = flags;
  outcome.code = code;
  news_ = true;
}

}  // namespace ckptd::snapshot
