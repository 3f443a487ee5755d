#include "daemon/base/pace.h"

#include <algorithm>

namespace ckptd {

void Pace::Spend(uint64_t bytes, uint64_t bytes_per_second) {
  const std::chrono::duration<double> cost(static_cast<double>(bytes) / static_cast<double>(bytes_per_second));
  next_ =
      std::max(next_, std::chrono::steady_clock::now()) + std::chrono::duration_cast<std::chrono::nanoseconds>(cost);
  MutexLock lock(mutex_);
  while (!stopped_ && changed_.WaitUntil(mutex_, next_)) {
  }
}

void Pace::Stop() {
  MutexLock lock(mutex_);
  stopped_ = true;
  changed_.NotifyAll();
}

}  // namespace ckptd
