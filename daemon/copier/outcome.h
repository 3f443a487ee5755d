// How a request ended, and with what the process ends.
#ifndef CKPTD_DAEMON_COPIER_OUTCOME_H_
#define CKPTD_DAEMON_COPIER_OUTCOME_H_

#include <string>

#include "client/core/device/error.h"
#include "proto/local/copier.h"

namespace ckptd {

inline constexpr int kExitClosed = 0;  // the trainer, or what was left of it, has closed the socket
inline constexpr int kExitUsage = 2;
inline constexpr int kExitDevice = 3;  // the GPU's context is broken: only this process's end helps
inline constexpr int kExitSocket = 4;

struct [[nodiscard]] Outcome {
  CopierOutcome code = CopierOutcome::kDone;
  std::string sentence;
  DeviceFault fault = DeviceFault::kNone;

  [[nodiscard]] bool ok() const { return code == CopierOutcome::kDone; }
  [[nodiscard]] bool IsBroken() const { return fault == DeviceFault::kSticky || fault == DeviceFault::kLost; }
};

[[gnu::format(printf, 1, 2)]] Outcome Refuse(const char* format, ...);

// kRefused where the context is whole and the trainer may go another way, else kDevice. `what` comes first.
Outcome DeviceFails(const char* what, const DeviceError& error);

// "what: No such file or directory".
Outcome FileFails(const char* what, int error);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_OUTCOME_H_
