// Where a path lies: the directory that holds its last name, opened, and that name. What is done there is done in that
// directory, whatever anybody puts in its place meanwhile.
//
// Below a root no symbolic link is followed, whoever made it: in a folder that others may write, a link in place of a
// job or of a step would make the agent read or delete what belongs to somebody else. The root itself may lie behind
// links: it is the operator's. It is looked up for each operation: it may be mounted anew.
#ifndef CKPTD_DAEMON_OS_PLACES_H_
#define CKPTD_DAEMON_OS_PLACES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/os/fd.h"

namespace ckptd {

struct Place {
  UniqueFd folder;             // none: the name is a whole path
  const char* name = nullptr;  // in the path that was given, or "." of the root itself

  [[nodiscard]] int at() const;
};

struct TwoPlaces {
  Place to;
  Place from;  // without a folder of its own where it lies beside `to`
  bool beside = false;

  [[nodiscard]] int from_at() const { return beside ? to.at() : from.at(); }
};

// Of the last name of a path that is opened.
enum class LastLink { kRefuse, kFollow };

class Places {
 public:
  // "": any path, links to directories are followed. Else only what lies in `root`; other paths are INVALID_ARGUMENT.
  explicit Places(std::string root = "") : root_(std::move(root)) {}

  // For calls that take a directory and a name. `operation` names the call in an error.
  [[nodiscard]] absl::StatusOr<Place> Find(const std::string& path, absl::string_view operation) const;
  // For calls from one name to another. In one directory, as a publication has them, that is looked up once.
  [[nodiscard]] absl::StatusOr<TwoPlaces> FindBoth(const std::string& from, const std::string& to,
                                                   absl::string_view operation) const;
  // open(2). The last name is no link unless `link` says that it may be; below a root in no case.
  [[nodiscard]] absl::StatusOr<UniqueFd> Open(const std::string& path, int flags, uint32_t mode = 0,
                                              LastLink link = LastLink::kRefuse) const;

 private:
  const std::string root_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_PLACES_H_
