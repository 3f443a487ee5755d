// The kernel's log (/dev/kmsg): what NVIDIA's driver says there of errors of a GPU, as "NVRM: Xid (PCI:…): 79, …".
//
// Reading takes up where the last one ended, so whoever reads whenever the descriptor is readable never reads much at
// once. Where the log may not be read nothing is known, which is no error: few may read it. One thread.
//
// Only root may open it on most machines. An agent that is not root gets it from whoever starts it, as its standard
// input (StandardInput=file:/dev/kmsg).
#ifndef CKPTD_DAEMON_OS_KERNEL_LOG_H_
#define CKPTD_DAEMON_OS_KERNEL_LOG_H_

#include <unistd.h>

#include <cstddef>
#include <deque>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"
#include "daemon/os/fd.h"

namespace ckptd {

inline constexpr char kKernelLog[] = "/dev/kmsg";

class KernelLog {
 public:
  // `given` where it is the kernel's log, else `path`. Never closes `given`.
  explicit KernelLog(const std::string& path = kKernelLog, int given = STDIN_FILENO);

  [[nodiscard]] int fd() const { return fd_.get(); }  // -1: the log cannot be read
  // At most `most` records. False: it has ended, nothing more will come.
  bool Read(size_t most);
  // Reads on to the end. The newest error of a GPU that was logged at `since_boot` or later; nullopt when none is
  // known.
  [[nodiscard]] std::optional<std::string> GpuErrorSince(Nanos since_boot);

 private:
  struct GpuError {
    Nanos since_boot;
    std::string text;
  };

  void Take(absl::string_view record);

  UniqueFd fd_;
  bool caught_up_ = false;       // what comes now was logged just now
  std::deque<GpuError> errors_;  // oldest first
};

// What a process' start time says in nanoseconds since boot.
[[nodiscard]] Nanos SinceBoot(uint64_t clock_ticks);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_KERNEL_LOG_H_
