#include "daemon/os/capabilities.h"

#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ckptd {

std::vector<std::string> MissingToRunAsOthers() {
  static constexpr struct {
    int number;
    const char* name;
  } kNeeded[] = {{CAP_SETUID, "CAP_SETUID"}, {CAP_SETGID, "CAP_SETGID"}, {CAP_KILL, "CAP_KILL"}};
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct held[_LINUX_CAPABILITY_U32S_3] = {};
  const bool known = syscall(SYS_capget, &header, held) == 0;
  std::vector<std::string> missing;
  for (const auto& needed : kNeeded) {
    const bool has = known && (held[CAP_TO_INDEX(needed.number)].effective & CAP_TO_MASK(needed.number)) != 0;
    if (!has) missing.emplace_back(needed.name);
  }
  return missing;
}

}  // namespace ckptd
