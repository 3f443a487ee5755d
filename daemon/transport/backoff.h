// Pauses between attempts: each twice the one before, up to a longest, each cut by a random part of its second half, so
// that thousands of nodes that lost one peer at once do not come back at once. (Exponential backoff with equal jitter.)
#ifndef CKPTD_DAEMON_TRANSPORT_BACKOFF_H_
#define CKPTD_DAEMON_TRANSPORT_BACKOFF_H_

#include <cstdint>

#include "daemon/base/clock.h"

namespace ckptd::transport {

// Pure; one thread.
class Backoff {
 public:
  // 0 < `first` <= `longest`.
  Backoff(Nanos first, Nanos longest, uint64_t seed) : first_(first), longest_(longest), whole_(first), state_(seed) {}

  // Between half of the whole pause and all of it.
  [[nodiscard]] Nanos Next();
  // The next one is the first again.
  void Reset() { whole_ = first_; }

 private:
  const Nanos first_;
  const Nanos longest_;
  Nanos whole_;
  uint64_t state_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_BACKOFF_H_
