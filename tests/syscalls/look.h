// What a life left, recovered by another process and held against what was told.
#ifndef CKPTD_TESTS_SYSCALLS_LOOK_H_
#define CKPTD_TESTS_SYSCALLS_LOOK_H_

#include <string>

#include "tests/crash/crash_explore.h"

namespace ckptd::syscalls {

// restore() over FOLDER/store, by a fresh agent; and what is left to do is done.
[[nodiscard]] crash::Answer RecoverBelow(const std::string& folder, const crash::NodeOptions& options);

// Empty, or the first thing that is wrong: names and bytes (crash_disk.h), what restore() gives, the first time and
// again (R1, R2, R7), temporary files that stay, a save after it that does not come to durable. Changes the folder.
[[nodiscard]] std::string WrongBelow(const std::string& folder, const crash::NodeOptions& options,
                                     const crash::Promise& promise);

}  // namespace ckptd::syscalls

#endif  // CKPTD_TESTS_SYSCALLS_LOOK_H_
