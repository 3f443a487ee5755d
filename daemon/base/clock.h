// Time, injected. Deadlines and durations use Monotonic(); Wall() is only for showing to people.
#ifndef CKPTD_DAEMON_BASE_CLOCK_H_
#define CKPTD_DAEMON_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace ckptd {

using Nanos = std::chrono::nanoseconds;

[[nodiscard]] constexpr double Seconds(Nanos duration) { return static_cast<double>(duration.count()) / 1e9; }

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual Nanos Monotonic() const = 0;  // since boot, never goes back
  [[nodiscard]] virtual Nanos Wall() const = 0;       // since 1970, may jump
};

// CLOCK_MONOTONIC and CLOCK_REALTIME. Any thread.
[[nodiscard]] const Clock& SystemClock();

// Stands still until told. One thread.
class FakeClock final : public Clock {
 public:
  [[nodiscard]] Nanos Monotonic() const override { return now_; }
  [[nodiscard]] Nanos Wall() const override { return now_; }
  void Advance(Nanos by) { now_ += by; }

 private:
  Nanos now_{1};
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_CLOCK_H_
