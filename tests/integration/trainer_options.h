// The flags of ckpt-trainer.
#ifndef CKPTD_TESTS_INTEGRATION_TRAINER_OPTIONS_H_
#define CKPTD_TESTS_INTEGRATION_TRAINER_OPTIONS_H_

#include <cstdint>
#include <string>

struct Options {
  std::string job = "trainer";
  std::string socket;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint64_t steps = 100;
  uint64_t every = 5;
  uint64_t tensors = 8;
  uint64_t bytes = 1 << 20;
  uint64_t step_ms = 0;
  uint64_t seed = 1;
  uint64_t restore_ms = 60'000;
  uint64_t gate_ms = 0;
  uint64_t close_ms = 30'000;
  std::string meet;             // file: its ranks keep step
  std::string want = "newest";  // newest, fresh, or a step
  uint64_t grow_step = 0;       // --grow-at STEP: from then on there is one more tensor, of `grow_bytes`
  uint64_t grow_bytes = 1 << 20;
  uint64_t fork_step = 0;   // --fork-after STEPS: then it has a worker, as data loaders have, which outlives it
  uint64_t await_step = 0;  // --await-at STEP: the memory is waited for before that save, as before the last one
  uint64_t kill_step = 0;   // --kill-at STEP:POINT
  std::string kill_point;   // restore, load, save, gate, captured, durable
  bool digest = false;      // says the digest of the last step's state, without training
  bool gate = true;
  bool restore = true;
};

// Whoever uses it wrongly is told how, and the process ends with 2.
Options ParseOptions(int argc, char** argv);

#endif  // CKPTD_TESTS_INTEGRATION_TRAINER_OPTIONS_H_
