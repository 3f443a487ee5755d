// Preloaded by faults_e2e_test into an agent: its wall clock is wrong by what the file $CKPTD_CLOCK_JUMP says
// (clock_jump.h), from one reading to the next. The kernel has no wall clock for one process or namespace.
#include "tests/integration/clock_jump.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>

namespace ckptd::harness {
namespace {

ClockJump* MapJump() {
  const char* path = getenv(kClockJumpVariable);
  const int fd = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* mapped = mmap(nullptr, sizeof(ClockJump), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return mapped == MAP_FAILED ? nullptr : static_cast<ClockJump*>(mapped);
}

ClockJump* jump;
[[gnu::constructor]] void Open() { jump = MapJump(); }

int Read(clockid_t clock, timespec* time) {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  const bool wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
  if (result != 0 || !wall || jump == nullptr) return result;
  const int64_t seconds = jump->seconds.load(std::memory_order_relaxed);
  if (seconds != 0) jump->shifted.fetch_add(1, std::memory_order_relaxed);
  time->tv_sec += seconds;
  return result;
}

}  // namespace
}  // namespace ckptd::harness

// NOLINTBEGIN(readability-identifier-naming): the C library's own names
extern "C" {

[[gnu::visibility("default")]] int clock_gettime(clockid_t clock, timespec* time) {
  return ckptd::harness::Read(clock, time);
}

[[gnu::visibility("default")]] int gettimeofday(timeval* time, void* /*zone*/) {
  timespec now = {};
  const int result = ckptd::harness::Read(CLOCK_REALTIME, &now);
  *time = {now.tv_sec, now.tv_nsec / 1000};
  return result;
}

[[gnu::visibility("default")]] time_t time(time_t* into) {
  timespec now = {};
  if (ckptd::harness::Read(CLOCK_REALTIME, &now) != 0) return -1;
  if (into != nullptr) *into = now.tv_sec;
  return now.tv_sec;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
