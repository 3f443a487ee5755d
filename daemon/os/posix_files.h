// The real file system.
#ifndef CKPTD_DAEMON_OS_POSIX_FILES_H_
#define CKPTD_DAEMON_OS_POSIX_FILES_H_

#include <memory>
#include <string>

#include "daemon/os/files.h"

namespace ckptd {

// Lives for ever, any thread.
[[nodiscard]] Files& PosixFiles();

// For what lies in the directory `root`, where others may write: no symbolic link is followed there (places.h).
[[nodiscard]] std::unique_ptr<Files> MakeFilesBelow(std::string root);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_POSIX_FILES_H_
