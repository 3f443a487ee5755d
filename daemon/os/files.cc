#include "daemon/os/files.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

constexpr char kBeforeSyncUrl[] = "ckptd/before-sync";

// The rows that ErrnoError has no opinion on, or one that is wrong for files.
ErrorCode CodeOfFileErrno(int error) {
  switch (error) {
    case EFAULT:
      return ErrorCode::CORRUPT;
    case EINVAL:
    case ENAMETOOLONG:
      return ErrorCode::INVALID_ARGUMENT;
    case EFBIG:
      return ErrorCode::STORAGE_FULL;
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case EXDEV:
      return ErrorCode::REFUSED;
    case ESTALE:
    case ETIMEDOUT:
    case EREMOTEIO:
    case EHOSTDOWN:
    case ENOTCONN:
    case ENXIO:
    case ENODEV:
    case EBUSY:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return ErrorCode::STORAGE_IO;
    default:
      return ErrorCode::OK;
  }
}

// UNIMPLEMENTED to whoever has another way; where nobody has, the file system is what an operator has to look at.
absl::Status Unsupported(absl::string_view sentence) {
  absl::Status status(absl::StatusCode::kUnimplemented, absl::StrCat(sentence, "; this file system cannot do that"));
  Error(ErrorCode::REFUSED, "").ForEachPayload([&](absl::string_view url, const absl::Cord& payload) {
    status.SetPayload(url, payload);
  });
  return status;
}

}  // namespace

absl::Status FileError(int error, absl::string_view operation, absl::string_view path) {
  absl::Status plain = ErrnoError(error, operation, path);
  if (error == EEXIST) return absl::AlreadyExistsError(plain.message());
  if (error == ELOOP) {
    return Error(ErrorCode::REFUSED,
                 absl::StrCat(operation, " ", path,
                              ": a symbolic link, which is not followed there; put what it names in its place"));
  }
  if (error == EOPNOTSUPP || error == ENOSYS) return Unsupported(plain.message());
  ErrorCode code = CodeOfFileErrno(error);
  return code == ErrorCode::OK ? plain : Error(code, plain.message());
}

absl::StatusOr<bool> Exists(Files& files, const std::string& path) {
  absl::Status status = files.Stat(path).status();
  if (status.ok()) return true;
  if (absl::IsNotFound(status)) return false;
  return status;
}

namespace {

absl::StatusOr<std::string> ReadWhole(Files& files, const std::string& path, const OpenOptions& options,
                                      size_t max_bytes) {
  CKPTD_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Open(path, options));
  CKPTD_ASSIGN_OR_RETURN(FileInfo info, file->Stat());
  if (info.type != FileType::kRegular) return Error(ErrorCode::REFUSED, absl::StrCat(path, ": not a regular file"));
  if (info.size > max_bytes) {
    return Error(ErrorCode::CORRUPT, absl::StrCat(path, ": ", info.size, " bytes, at most ", max_bytes, " expected"));
  }
  std::string text(info.size, '\0');
  CKPTD_ASSIGN_OR_RETURN(size_t got, file->PRead(0, std::as_writable_bytes(std::span(text))));
  text.resize(got);  // it may have been cut since Stat; whoever parses it will notice
  return text;
}

}  // namespace

absl::StatusOr<std::string> ReadSmall(Files& files, const std::string& path, size_t max_bytes) {
  return ReadWhole(files, path, {}, max_bytes);
}

absl::StatusOr<std::string> ReadOperatorFile(Files& files, const std::string& path, size_t max_bytes) {
  return ReadWhole(files, path, {.follow = true}, max_bytes);
}

bool IsBeforeSync(const absl::Status& status) { return status.GetPayload(kBeforeSyncUrl).has_value(); }

absl::Status BeforeSync(absl::Status status) {
  status.SetPayload(kBeforeSyncUrl, absl::Cord());
  return status;
}

std::string ParentOf(absl::string_view path) {
  size_t slash = path.rfind('/');
  if (slash == absl::string_view::npos || slash == 0) return "/";
  return std::string(path.substr(0, slash));
}

}  // namespace ckptd
