#include "daemon/os/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/os/files.h"

namespace ckptd {
namespace {

// Only for the sentence: what the holder wrote, which may not be there yet.
std::string HolderIn(int fd) {
  std::array<char, 32> text{};
  ssize_t got = pread(fd, text.data(), text.size(), 0);
  absl::string_view holder = absl::StripAsciiWhitespace(absl::string_view(text.data(), got < 0 ? 0 : got));
  return holder.empty() ? "another process" : absl::StrCat("process ", holder);
}

}  // namespace

absl::StatusOr<FileLock> FileLock::Acquire(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return FileError(errno, "open", path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FileError(errno, "flock", path);
    return Error(ErrorCode::REFUSED, absl::StrCat(path, ": held by ", HolderIn(fd.get())));
  }
  const std::string holder = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd.get(), 0) != 0 || pwrite(fd.get(), holder.data(), holder.size(), 0) < 0) {
    return FileError(errno, "write", path);
  }
  return FileLock(std::move(fd));
}

}  // namespace ckptd
