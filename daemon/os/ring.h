// io_uring as the queue above it sees it: requests go in, results of system calls come out. A seam: a test puts results
// there that a disk seldom gives (testing/fault_ring.h).
#ifndef CKPTD_DAEMON_OS_RING_H_
#define CKPTD_DAEMON_OS_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "daemon/os/io_queue.h"

namespace ckptd {

class Ring {
 public:
  struct Done {
    uint64_t slot = 0;
    int64_t result = 0;  // bytes moved, or -errno
  };
  virtual ~Ring() = default;

  // Hands the request to the kernel; `slot` comes back with its result. On an error the kernel will not touch its
  // memory.
  [[nodiscard]] virtual absl::Status Start(const IoRequest& request, uint64_t slot) = 0;
  // Waits for a result. Only while a request is in flight.
  [[nodiscard]] virtual Done Wait() = 0;
  // A result that is there already.
  [[nodiscard]] virtual std::optional<Done> Poll() = 0;
};

// Fails with the reason where the kernel has no io_uring, forbids it, or lacks the plain read and write operations.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Ring>> MakeRing(size_t depth);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_RING_H_
