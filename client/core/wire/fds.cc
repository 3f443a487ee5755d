#include "client/core/wire/fds.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ckptd {

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) Reset(other.Release());
  return *this;
}

int UniqueFd::Release() { return std::exchange(fd_, -1); }

void UniqueFd::Reset(int fd) {
  int old = std::exchange(fd_, fd);
  if (old < 0) return;
  int saved = errno;
  close(old);  // Linux frees the number even on EINTR: never again
  errno = saved;
}

}  // namespace ckptd
