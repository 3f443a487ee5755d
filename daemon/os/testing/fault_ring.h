// A ring whose n-th result is another than the disk's: an error after half of the bytes were moved, or a short
// transfer.
#ifndef CKPTD_DAEMON_OS_TESTING_FAULT_RING_H_
#define CKPTD_DAEMON_OS_TESTING_FAULT_RING_H_

#include <cstdint>
#include <memory>

#include "daemon/os/ring.h"

namespace ckptd {

struct RingFault {
  uint64_t at = 0;      // which request, 1 = the first; 0 = none
  int error = 0;        // errno; 0 = a short transfer
  bool submit = false;  // the request is not even taken
  bool lies = false;    // and the result says that all was done: for checks of the checks
};

// Counts in `started` over all rings that share it. Both outlive the ring; `inner` is the real one, or PlainRing.
[[nodiscard]] std::unique_ptr<Ring> MakeFaultRing(std::unique_ptr<Ring> inner, const RingFault& fault,
                                                  uint64_t& started);
// By pread and pwrite inside Start, where the kernel has no io_uring.
[[nodiscard]] std::unique_ptr<Ring> MakePlainRing();

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_TESTING_FAULT_RING_H_
