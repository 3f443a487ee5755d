// Holds background reading to a rate. One thread reads; any thread may stop it.
#ifndef CKPTD_DAEMON_BASE_PACE_H_
#define CKPTD_DAEMON_BASE_PACE_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "daemon/base/mutex.h"

namespace ckptd {

class Pace {
 public:
  // `bytes` were read: waits until `bytes_per_second` allows more. Returns at once after Stop().
  void Spend(uint64_t bytes, uint64_t bytes_per_second) CKPTD_EXCLUDES(mutex_);
  // For good. Whoever waits in Spend() goes on.
  void Stop() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] const std::atomic<bool>& stopped() const { return stopped_; }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::atomic<bool> stopped_{false};
  std::chrono::steady_clock::time_point next_;  // when what was read so far is paid for; the reader's alone
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_PACE_H_
