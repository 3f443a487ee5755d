// Holds a sender to a rate: a token bucket (as in RFC 2697). It fills with `rate` bytes a second up to `burst` and
// sending takes out. A chunk larger than the burst waits for a full bucket and leaves a debt, so that any chunk can be
// sent and the rate still holds in the long run. Pure: time is given. One thread.
#ifndef CKPTD_DAEMON_TRANSPORT_TOKEN_BUCKET_H_
#define CKPTD_DAEMON_TRANSPORT_TOKEN_BUCKET_H_

#include <cstdint>

#include "daemon/base/clock.h"

namespace ckptd::transport {

class TokenBucket {
 public:
  // bytes_per_second: 0 = no limit. `burst` in bytes; the bucket is full at the start. Both below 2^40.
  TokenBucket(uint64_t bytes_per_second, uint64_t burst);

  // When `bytes` may be sent; at or before `now`: at once. `now` never goes back.
  [[nodiscard]] Nanos ReadyAt(uint64_t bytes, Nanos now);
  // They were sent.
  void Take(uint64_t bytes, Nanos now);

 private:
  void Fill(Nanos now);

  const double rate_;  // bytes a nanosecond; 0 = no limit
  const double burst_;
  double level_;
  Nanos filled_{0};
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TOKEN_BUCKET_H_
