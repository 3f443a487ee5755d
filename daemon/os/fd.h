// Owner of one file descriptor.
#ifndef CKPTD_DAEMON_OS_FD_H_
#define CKPTD_DAEMON_OS_FD_H_

#include <unistd.h>

#include <utility>

namespace ckptd {

// Closes on destruction, ignoring close's result: where that result matters (written files), use File::Close.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(other.Release());
    return *this;
  }
  ~UniqueFd() { Reset(); }

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int Release() { return std::exchange(fd_, -1); }
  void Reset(int fd = -1) {
    int old = std::exchange(fd_, fd);
    if (old >= 0) close(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_FD_H_
