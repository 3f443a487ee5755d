// The real file system.
#ifndef CKPTD_DAEMON_OS_POSIX_FILES_H_
#define CKPTD_DAEMON_OS_POSIX_FILES_H_

#include "daemon/os/files.h"

namespace ckptd {

// Lives for ever, any thread.
[[nodiscard]] Files& PosixFiles();

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_POSIX_FILES_H_
