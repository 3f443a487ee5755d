#include "daemon/os/memfd.h"

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

absl::Status Refuse(absl::string_view why) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("received descriptor: ", why));
}

// A file on FUSE or NFS could block us for ever, a pipe has no size: only memory may pass.
absl::Status CheckKind(int fd, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return Refuse("not a regular file");
  struct statfs where {};
  if (fstatfs(fd, &where) != 0) return ErrnoError(errno, "fstatfs", "received descriptor");
  return where.f_type == TMPFS_MAGIC ? absl::OkStatus() : Refuse("not in memory (memfd)");
}

}  // namespace

absl::StatusOr<UniqueFd> CreateMemfd(const std::string& name, uint64_t size) {
  UniqueFd fd(memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoError(errno, "memfd_create", name);
  if (fallocate(fd.get(), 0, 0, static_cast<off_t>(size)) != 0) return ErrnoError(errno, "fallocate", name);
  return fd;
}

absl::Status AddSeals(int fd, int seals) {
  return fcntl(fd, F_ADD_SEALS, seals) == 0 ? absl::OkStatus() : ErrnoError(errno, "seal", absl::StrCat("fd ", fd));
}

absl::StatusOr<uint64_t> CheckMemfd(int fd, int seals, uint64_t max_size) {
  const int present = fcntl(fd, F_GET_SEALS);
  if (present < 0) return Refuse("cannot be sealed");
  if ((present & seals) != seals) return Refuse("seals missing");
  // Only now: the size of an unsealed file could change after fstat.
  struct stat info {};
  if (fstat(fd, &info) != 0) return ErrnoError(errno, "fstat", "received descriptor");
  CKPTD_RETURN_IF_ERROR(CheckKind(fd, info));
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size == 0 || size > max_size) return Refuse(absl::StrCat(size, " bytes, 1 to ", max_size, " allowed"));
  return size;
}

absl::StatusOr<std::string> ReadSealedMemfd(int fd, size_t max_size) {
  CKPTD_ASSIGN_OR_RETURN(uint64_t size, CheckMemfd(fd, kSealsOfContent, max_size));
  std::string content(size, '\0');
  for (size_t done = 0; done < content.size();) {
    ssize_t got = pread(fd, content.data() + done, content.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(errno, "read", "received descriptor");
    if (got == 0) return Refuse("shorter than its size");
    done += static_cast<size_t>(got);
  }
  return content;
}

}  // namespace ckptd
