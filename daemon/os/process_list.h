// The processes of this machine, by name.
#ifndef CKPTD_DAEMON_OS_PROCESS_LIST_H_
#define CKPTD_DAEMON_OS_PROCESS_LIST_H_

#include <string>
#include <vector>

#include "daemon/os/fd.h"
#include "daemon/os/pidfd.h"

namespace ckptd {

struct ListedProcess {
  ProcessId id;
  UniqueFd pidfd;
  std::vector<std::string> command_line;  // empty: its memory is gone already
};

// Those that have one of these names, by what the kernel keeps of a name (15 bytes), and have not ended. Only their
// command lines are read: that of a process that hangs may hang its reader.
[[nodiscard]] std::vector<ListedProcess> ListProcesses(const std::vector<std::string>& names);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_PROCESS_LIST_H_
