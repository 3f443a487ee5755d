// Early return of absl::Status and absl::StatusOr. (Debian's Abseil has no status macros yet.)
//
//   CKPTD_RETURN_IF_ERROR(file->Sync());
//   CKPTD_ASSIGN_OR_RETURN(auto file, files.Open(path));
#ifndef CKPTD_DAEMON_BASE_STATUS_MACROS_H_
#define CKPTD_DAEMON_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define CKPTD_RETURN_IF_ERROR(expression)                                                  \
  do {                                                                                     \
    if (absl::Status ckptd_status = (expression); !ckptd_status.ok()) return ckptd_status; \
  } while (false)

#define CKPTD_MACRO_CONCAT_INNER(a, b) a##b
#define CKPTD_MACRO_CONCAT(a, b) CKPTD_MACRO_CONCAT_INNER(a, b)
#define CKPTD_ASSIGN_OR_RETURN(target, expression) \
  CKPTD_ASSIGN_OR_RETURN_IMPL(CKPTD_MACRO_CONCAT(ckptd_result_, __LINE__), target, expression)
#define CKPTD_ASSIGN_OR_RETURN_IMPL(result, target, expression) \
  auto result = (expression);                                   \
  if (!result.ok()) return std::move(result).status();          \
  target = *std::move(result)

#endif  // CKPTD_DAEMON_BASE_STATUS_MACROS_H_
