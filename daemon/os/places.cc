#include "daemon/os/places.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/files.h"

namespace ckptd {
namespace {

template <typename Call>
UniqueFd Retry(Call call) {
  int fd = -1;
  do {
    fd = static_cast<int>(call());
  } while (fd < 0 && errno == EINTR);
  return UniqueFd(fd);
}

}  // namespace

int Place::at() const { return folder.valid() ? folder.get() : AT_FDCWD; }

absl::StatusOr<std::string> Places::Below(const std::string& path, absl::string_view operation) const {
  if (path == root_) return ".";
  if (absl::StartsWith(path, absl::StrCat(root_, "/"))) return path.substr(root_.size() + 1);
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(operation, " ", path, ": not in ", root_));
}

absl::StatusOr<UniqueFd> Places::OpenBelow(const std::string& path, absl::string_view below, int flags, uint32_t mode,
                                           absl::string_view operation) const {
  const UniqueFd root = Retry([&] { return open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); });
  if (!root.valid()) return FileError(errno, operation, path);
  open_how how{};
  how.flags = static_cast<uint64_t>(flags);
  how.mode = (flags & O_CREAT) != 0 ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS;
  const std::string name(below);
  UniqueFd fd = Retry([&] { return syscall(SYS_openat2, root.get(), name.c_str(), &how, sizeof how); });
  if (!fd.valid()) return FileError(errno, operation, path);
  return fd;
}

absl::StatusOr<Place> Places::Find(const std::string& path, absl::string_view operation) const {
  if (root_.empty()) return Place{UniqueFd(), path};
  CKPTD_ASSIGN_OR_RETURN(const std::string below, Below(path, operation));
  const size_t slash = below.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : below.substr(0, slash);
  const std::string name = slash == std::string::npos ? below : below.substr(slash + 1);
  constexpr int kFlags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, OpenBelow(path, folder, kFlags, 0, operation));
  return Place{std::move(fd), name};
}

absl::StatusOr<UniqueFd> Places::Open(const std::string& path, int flags, uint32_t mode) const {
  if (!root_.empty()) {
    CKPTD_ASSIGN_OR_RETURN(const std::string below, Below(path, "open"));
    return OpenBelow(path, below, flags | O_CLOEXEC, mode, "open");
  }
  UniqueFd fd = Retry([&] { return open(path.c_str(), flags | O_NOFOLLOW | O_CLOEXEC, mode); });
  if (!fd.valid()) return FileError(errno, "open", path);
  return fd;
}

}  // namespace ckptd
