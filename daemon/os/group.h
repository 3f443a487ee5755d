// Names of groups.
#ifndef CKPTD_DAEMON_OS_GROUP_H_
#define CKPTD_DAEMON_OS_GROUP_H_

#include <sys/types.h>

#include <string>

#include "absl/status/statusor.h"

namespace ckptd {

// NOT_FOUND for a name that the system does not know. May ask a directory server: only while the agent starts.
[[nodiscard]] absl::StatusOr<gid_t> FindGroup(const std::string& name);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_GROUP_H_
