// Owner of one file descriptor: the class that trainer and agent share. It ignores the result of close(): where that
// matters (written files), use File::Close.
#ifndef CKPTD_DAEMON_OS_FD_H_
#define CKPTD_DAEMON_OS_FD_H_

#include <unistd.h>

#include <utility>

#include "client/core/wire/fds.h"

#endif  // CKPTD_DAEMON_OS_FD_H_
