#include "daemon/os/event_fd.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "daemon/base/errors.h"

namespace ckptd {

absl::StatusOr<UniqueFd> CreateEventFd() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd.valid()) return ErrnoError(errno, "eventfd", "");
  return fd;
}

void SignalEventFd(int fd) {
  const uint64_t one = 1;
  // The only failure is a counter at its maximum: then it is readable already.
  while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void DrainEventFd(int fd) {
  uint64_t count = 0;
  while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR) {
  }
}

}  // namespace ckptd
