// How many descriptors this process may have.
#ifndef CKPTD_DAEMON_OS_FILE_LIMIT_H_
#define CKPTD_DAEMON_OS_FILE_LIMIT_H_

namespace ckptd {

// As many as it may allow itself: what shells and systemd begin with (1024) is for programs that use select().
void RaiseFileLimit();

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_FILE_LIMIT_H_
