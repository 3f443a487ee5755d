#include "client/src/steps.h"

#include "client/include/ckpt/ckpt.h"

namespace ckptd {

StepState& Steps::Add(uint64_t step) {
  StepState& state = ring_[count_++ % ring_.size()];
  state = StepState{.step = step};
  return state;
}

StepState* Steps::Find(uint64_t step) {
  if (step == 0) return nullptr;
  for (StepState& state : ring_) {
    if (state.step == step) return &state;
  }
  return nullptr;
}

const StepState* Steps::Newest() const { return count_ == 0 ? nullptr : &ring_[(count_ - 1) % ring_.size()]; }

void Steps::Drop(uint64_t step, int32_t code) {
  StepState* state = Find(step);
  if (state == nullptr || (state->flags & (CKPT_DROPPED | CKPT_CAPTURED | CKPT_DURABLE)) != 0) return;
  state->flags |= CKPT_DROPPED;
  state->code = code;
}

void Steps::Apply(uint64_t step, uint32_t flags, int32_t code) {
  if ((flags & CKPT_DROPPED) != 0) return Drop(step, code);
  StepState* state = Find(step);
  if (state == nullptr || (state->flags & CKPT_DROPPED) != 0) return;
  if ((flags & CKPT_DURABLE) != 0) flags |= CKPT_CAPTURED;
  state->flags |= flags & (CKPT_CAPTURED | CKPT_PROTECTED | CKPT_DURABLE);
  state->code = (state->flags & CKPT_DURABLE) != 0 ? 0 : code;
}

}  // namespace ckptd
