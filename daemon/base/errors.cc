#include "daemon/base/errors.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

constexpr absl::string_view kPayloadUrl = "ckptd/error";

constexpr ErrorInfo kOkInfo = {ErrorCode::OK, "OK", absl::StatusCode::kOk, 0, "", ""};
constexpr ErrorInfo kErrors[] = {
#define CKPTD_ERROR(name, number, absl_code, exit_code, exception, next_step) \
  {ErrorCode::name, #name, absl::StatusCode::absl_code, exit_code, exception, next_step},
#include "proto/local/errors.def"
#undef CKPTD_ERROR
};

ErrorCode CodeOfErrno(int error) {
  switch (error) {
    case ENOENT:
      return ErrorCode::NOT_FOUND;
    case EACCES:
    case EPERM:
      return ErrorCode::PERMISSION;
    case ENOSPC:
    case EDQUOT:
      return ErrorCode::STORAGE_FULL;
    case EROFS:
      return ErrorCode::STORAGE_READ_ONLY;
    case EIO:
      return ErrorCode::STORAGE_IO;
    default:
      return ErrorCode::INTERNAL;
  }
}

}  // namespace

const ErrorInfo& InfoOf(ErrorCode code) {
  if (code == ErrorCode::OK) return kOkInfo;
  const ErrorInfo* internal = nullptr;
  for (const ErrorInfo& info : kErrors) {
    if (info.code == code) return info;
    if (info.code == ErrorCode::INTERNAL) internal = &info;
  }
  return *internal;
}

absl::Status Error(ErrorCode code, absl::string_view message) {
  absl::Status status(InfoOf(code).status_code, std::string(message));
  status.SetPayload(std::string(kPayloadUrl), absl::Cord(absl::StrCat(static_cast<uint32_t>(code))));
  return status;
}

ErrorCode CodeOf(const absl::Status& status) {
  if (status.ok()) return ErrorCode::OK;
  if (auto payload = status.GetPayload(std::string(kPayloadUrl))) {
    uint32_t number = 0;
    if (absl::SimpleAtoi(std::string(*payload), &number)) return InfoOf(static_cast<ErrorCode>(number)).code;
  }
  for (const ErrorInfo& info : kErrors) {
    if (info.status_code == status.code()) return info.code;
  }
  return ErrorCode::INTERNAL;
}

absl::Status ErrnoError(int error, absl::string_view operation, absl::string_view object) {
  char text[128];
  const char* said = strerror_r(error, text, sizeof(text));
  return Error(CodeOfErrno(error), absl::StrCat(operation, " ", object, ": ", said));
}

}  // namespace ckptd
