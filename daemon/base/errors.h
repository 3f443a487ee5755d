// ckptd's error codes as absl::Status. Every error of ckptd is one row of proto/local/errors.def; the row's name
// travels as a payload of the Status, so that it survives rooms, gRPC and the socket.
//
//   return Error(ErrorCode::REGION_FULL, absl::StrCat("job ", job, ": needs ", need, ", free ", free));
#ifndef CKPTD_DAEMON_BASE_ERRORS_H_
#define CKPTD_DAEMON_BASE_ERRORS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ckptd {

enum class ErrorCode : uint32_t {
  OK = 0,
#define CKPTD_ERROR(name, number, absl_code, exit_code, exception, next_step) name = number,
#include "proto/local/errors.def"
#undef CKPTD_ERROR
};

struct ErrorInfo {
  ErrorCode code;
  const char* name;
  absl::StatusCode status_code;
  int exit_code;
  const char* exception;
  const char* next_step;
};

// Never null: an unknown number gives the row of INTERNAL.
[[nodiscard]] const ErrorInfo& InfoOf(ErrorCode code);

[[nodiscard]] absl::Status Error(ErrorCode code, absl::string_view message);

// The row a Status was made from; for a foreign Status the first row with the same absl code, else INTERNAL.
[[nodiscard]] ErrorCode CodeOf(const absl::Status& status);

// errno as a Status with the operation and its object: "open /x/y: Permission denied".
[[nodiscard]] absl::Status ErrnoError(int error, absl::string_view operation, absl::string_view object);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_ERRORS_H_
