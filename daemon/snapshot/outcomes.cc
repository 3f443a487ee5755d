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
  if ((outcome.flags & kStepDurable) == 0) Set(outcome, kStepCaptured, ErrorCode::SUPERSEDED);
}

void Outcomes::Settle(StepId captured, StepId durable, StepId floor) {
  if (durable != 0) Set(Obtain(durable), kStepCaptured | kStepDurable, ErrorCode::OK);
  // W is the newest, but for a while after a restart of the coordinator: an older step that it names then may have been
  // durable long ago.
  StepOutcome* newest = captured > durable ? &Obtain(captured) : Find(captured);
  if (newest != nullptr && newest->flags == 0) Set(*newest, kStepCaptured, ErrorCode::OK);
  for (StepOutcome& outcome : list_) {
    const bool passed_over = outcome.flags == 0 && outcome.step < floor;
    if (passed_over) Set(outcome, kStepDropped, ErrorCode::BELOW_FLOOR);
    const bool overtaken = outcome.flags == kStepCaptured && outcome.step < durable;
    if (overtaken) Set(outcome, kStepCaptured, ErrorCode::SUPERSEDED);
  }
}

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
