// What became of the last 64 steps that this handle was asked to save.
#ifndef CKPTD_CLIENT_SRC_STEPS_H_
#define CKPTD_CLIENT_SRC_STEPS_H_

#include <array>
#include <cstdint>

namespace ckptd {

struct StepState {
  uint64_t step = 0;   // 0 = unused
  uint32_t flags = 0;  // CKPT_COPIED, CKPT_CAPTURED ...
  int32_t code = 0;
  uint64_t blocked_ns = 0;
  uint64_t eager_bytes = 0;
};

// Not thread-safe: guarded by the handle's mutex.
class Steps {
 public:
  // Steps only grow; the oldest entry makes room.
  StepState& Add(uint64_t step);
  [[nodiscard]] StepState* Find(uint64_t step);
  [[nodiscard]] const StepState* Newest() const;  // null: none yet
  void Clear() { *this = Steps(); }

  // The first reason stays: what follows from it is not news. A captured step cannot be dropped.
  void Drop(uint64_t step, int32_t code);
  // An outcome told by the agent, for the whole job.
  void Apply(uint64_t step, uint32_t flags, int32_t code);

 private:
  std::array<StepState, 64> ring_;
  uint64_t count_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_STEPS_H_
