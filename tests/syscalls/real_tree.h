// The real file system below one folder, as the simulator has its own.
#ifndef CKPTD_TESTS_SYSCALLS_REAL_TREE_H_
#define CKPTD_TESTS_SYSCALLS_REAL_TREE_H_

#include <string>

#include "daemon/os/testing/sim_log.h"

namespace ckptd::syscalls {

// For the simulator's checks. Each name is a file of its own.
[[nodiscard]] sim::Tree TreeBelow(const std::string& folder);

}  // namespace ckptd::syscalls

#endif  // CKPTD_TESTS_SYSCALLS_REAL_TREE_H_
