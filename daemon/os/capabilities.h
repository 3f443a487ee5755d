// What this thread may do beyond what its user may: asked of the kernel, for root may lack it and others may have it.
#ifndef CKPTD_DAEMON_OS_CAPABILITIES_H_
#define CKPTD_DAEMON_OS_CAPABILITIES_H_

#include <string>
#include <vector>

namespace ckptd {

// Of those that it takes to start a program as another user and to end it again (CAP_SETUID, CAP_SETGID, CAP_KILL):
// the names of those that are not in effect.
[[nodiscard]] std::vector<std::string> MissingToRunAsOthers();

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_CAPABILITIES_H_
