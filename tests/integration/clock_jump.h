// What clock_jump.cc adds to the wall clock of the process it is preloaded into, as it lies in the file that it shares
// with the test.
#ifndef CKPTD_TESTS_INTEGRATION_CLOCK_JUMP_H_
#define CKPTD_TESTS_INTEGRATION_CLOCK_JUMP_H_

#include <atomic>
#include <cstdint>

namespace ckptd::harness {

inline constexpr char kClockJumpVariable[] = "CKPTD_CLOCK_JUMP";

struct ClockJump {
  std::atomic<int64_t> seconds;   // the test's: what is added
  std::atomic<uint64_t> shifted;  // the process's: so many readings were not the true time
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_CLOCK_JUMP_H_
