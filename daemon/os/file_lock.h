// One process at a time, by flock on a file. The kernel releases it when the holder dies.
#ifndef CKPTD_DAEMON_OS_FILE_LOCK_H_
#define CKPTD_DAEMON_OS_FILE_LOCK_H_

#include <string>

#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd {

class FileLock {
 public:
  // Creates `path` (0600) if need be and writes the pid of this process into it. REFUSED, naming the holder, when
  // another process has it. The file stays after the release: unlinking it would let two holders in.
  [[nodiscard]] static absl::StatusOr<FileLock> Acquire(const std::string& path);

  // Before _exit, when a thread that the kernel cannot end would keep the file open, and with it the lock.
  void Release() { fd_.Reset(); }

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_FILE_LOCK_H_
