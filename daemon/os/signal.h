// Signals as a descriptor. Block them in main() before the first thread is made: threads inherit the mask.
#ifndef CKPTD_DAEMON_OS_SIGNAL_H_
#define CKPTD_DAEMON_OS_SIGNAL_H_

#include <initializer_list>
#include <optional>

#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd {

class SignalFd {
 public:
  // Blocks `signals` (such as SIGTERM, SIGINT, SIGHUP) in the calling thread and all it makes later, and ignores
  // SIGPIPE in the process.
  [[nodiscard]] static absl::StatusOr<SignalFd> Create(std::initializer_list<int> signals);

  // The next pending signal, if any; does not wait.
  [[nodiscard]] std::optional<int> Read();
  [[nodiscard]] int fd() const { return fd_.get(); }

 private:
  explicit SignalFd(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_SIGNAL_H_
