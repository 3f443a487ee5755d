#include "daemon/base/clock.h"

#include <ctime>

namespace ckptd {
namespace {

Nanos Read(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return std::chrono::seconds(now.tv_sec) + Nanos(now.tv_nsec);
}

class RealClock final : public Clock {
 public:
  [[nodiscard]] Nanos Monotonic() const override { return Read(CLOCK_MONOTONIC); }
  [[nodiscard]] Nanos Wall() const override { return Read(CLOCK_REALTIME); }
};

}  // namespace

const Clock& SystemClock() {
  static const RealClock clock;
  return clock;
}

}  // namespace ckptd
