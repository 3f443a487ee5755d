#include "daemon/os/group.h"

#include <grp.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd {

absl::StatusOr<gid_t> FindGroup(const std::string& name) {
  constexpr size_t kMost = size_t{1} << 20;  // a group with very many members
  for (size_t size = 4096; size <= kMost; size *= 4) {
    std::vector<char> buffer(size);
    group entry{};
    group* found = nullptr;
    int error = getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (error == ERANGE) continue;
    if (found != nullptr) return found->gr_gid;
    if (error != 0) return ErrnoError(error, "look up group", name);
    return Error(ErrorCode::NOT_FOUND, absl::StrCat("there is no group ", name));
  }
  return Error(ErrorCode::INTERNAL, absl::StrCat("group ", name, " has too many members"));
}

}  // namespace ckptd
