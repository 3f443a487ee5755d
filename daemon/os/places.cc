#include "daemon/os/places.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
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
    fd = call();
  } while (fd < 0 && errno == EINTR);
  return UniqueFd(fd);
}

// O_DIRECTORY says ENOTDIR of a link, too.
int ErrorOf(int error, int folder, const char* name) {
  struct stat info {};
  const bool link = error == ENOTDIR && fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
  return link ? ELOOP : error;
}

// From a directory to one in it. No heap: each operation on the storage comes through here.
absl::Status Enter(absl::string_view name, const std::string& path, absl::string_view operation, UniqueFd* folder) {
  char text[NAME_MAX + 1] = {};
  if (name.size() > NAME_MAX) return FileError(ENAMETOOLONG, operation, path);
  name.copy(text, NAME_MAX);
  constexpr int kFlags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
  UniqueFd next = Retry([&] { return openat(folder->get(), text, kFlags); });
  if (!next.valid()) return FileError(ErrorOf(errno, folder->get(), text), operation, path);
  *folder = std::move(next);
  return absl::OkStatus();
}

// The kernel ends a circle after forty links.
absl::Status FollowError(int error, const std::string& path) {
  if (error != ELOOP) return FileError(error, "open", path);
  return Error(ErrorCode::REFUSED,
               absl::StrCat("open ", path, ": its symbolic links lead in a circle; let them lead to a file"));
}

absl::Status Outside(absl::string_view operation, const std::string& path, const std::string& root) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(operation, " ", path, ": not in ", root));
}

}  // namespace

int Place::at() const { return folder.valid() ? folder.get() : AT_FDCWD; }

// Directory by directory: openat2 would do it in one call, but systemd's RestrictSUIDSGID= takes that one away.
absl::StatusOr<Place> Places::Find(const std::string& path, absl::string_view operation) const {
  if (root_.empty()) return Place{UniqueFd(), path.c_str()};
  if (!absl::StartsWith(path, root_)) return Outside(operation, path, root_);
  Place place{Retry([&] { return open(root_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); }), "."};
  if (!place.folder.valid()) return FileError(errno, operation, path);
  for (size_t at = root_.size(); at < path.size();) {
    if (path[at] != '/') return Outside(operation, path, root_);
    const size_t begin = at + 1;
    at = std::min(path.find('/', begin), path.size());
    const absl::string_view name(path.data() + begin, at - begin);
    if (name == "..") return Outside(operation, path, root_);
    if (name.empty()) continue;
    if (at == path.size()) return Place{std::move(place.folder), path.c_str() + begin};
    CKPTD_RETURN_IF_ERROR(Enter(name, path, operation, &place.folder));
  }
  return place;
}

absl::StatusOr<TwoPlaces> Places::FindBoth(const std::string& from, const std::string& to,
                                           absl::string_view operation) const {
  TwoPlaces two;
  CKPTD_ASSIGN_OR_RETURN(two.to, Find(to, operation));
  const size_t slash = from.rfind('/');
  two.beside = two.to.folder.valid() && slash >= root_.size() && slash == to.rfind('/') &&
               from.compare(0, slash, to, 0, slash) == 0 && from.compare(slash + 1, from.npos, "..") != 0;
  if (two.beside) {
    two.from.name = from.c_str() + slash + 1;
  } else {
    CKPTD_ASSIGN_OR_RETURN(two.from, Find(from, operation));
  }
  return two;
}

absl::StatusOr<UniqueFd> Places::Open(const std::string& path, int flags, uint32_t mode, LastLink link) const {
  CKPTD_ASSIGN_OR_RETURN(const Place place, Find(path, "open"));
  const bool follow = link == LastLink::kFollow && root_.empty();
  if (!follow) flags |= O_NOFOLLOW;
  UniqueFd fd = Retry([&] { return openat(place.at(), place.name, flags | O_CLOEXEC, mode); });
  if (fd.valid()) return fd;
  if (follow) return FollowError(errno, path);
  return FileError(ErrorOf(errno, place.at(), place.name), "open", path);
}

}  // namespace ckptd
