// What fills a lent slot by hand, for trainers and copiers of tests. Pure memory, one thread.
#ifndef CKPTD_TESTS_INTEGRATION_FILL_H_
#define CKPTD_TESTS_INTEGRATION_FILL_H_

#include <cstdint>
#include <string>

#include "proto/local/messages.h"

namespace ckptd::harness {

struct FillOrder {
  uint64_t epoch;
  uint64_t attempt;
  uint64_t step;
  uint64_t slot_bytes;
  uint64_t chunk_bytes;
  uint32_t slot;
  uint32_t chunk_count;
};

// The whole image: header, then the low byte of the step.
std::string ImageOf(uint64_t step, uint64_t bytes);
// The header of the one tensor.
std::string ImageHeader();

// The lent slot is the step's from now on. As libckpt does it before `pos` has passed the step: a position above a step
// that no slot has is a step that was dropped.
bool BeginFill(int bell, const FillOrder& order);
// Image, step, checksums, the check, and COMPLETE. False: the word was not OPEN.
bool CompleteFill(int bell, int slot_file, const FillOrder& order);
// `pos` of the bell.
bool PassSave(int bell, uint64_t attempt, uint64_t step);

// To the stand-in copier, with the bell, the hint, the slot's file and the trainer's pidfd.
struct RescueOrder {
  enum How : uint32_t {
    kAfterDeath = 0,  // completes the fill when the trainer has ended, and exits
    kAtOnce = 1,      // completes it now, and exits after the trainer's end
    kHangs = 2,
    kGivesUp = 3,  // exits after the trainer's end
  };
  FillOrder fill;
  uint32_t how;
  uint32_t delay_ms;  // between the trainer's end and what it does then
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_FILL_H_
