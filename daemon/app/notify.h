// What systemd wants to know (sd_notify), and its watchdog. Everything is a no-op when not started by systemd.
#ifndef CKPTD_DAEMON_APP_NOTIFY_H_
#define CKPTD_DAEMON_APP_NOTIFY_H_

#include <functional>
#include <string>

#include "daemon/base/clock.h"
#include "daemon/os/loop.h"

namespace ckptd {

void NotifyReady(const std::string& status);
void NotifyReloading();
// Stopping, and `more_time` from now until the next call: flushes may take long.
void NotifyStopping(const std::string& status, Nanos more_time);

// Pings at half the interval systemd asked for or more often, from the control loop itself: a loop that hangs is
// killed. Each ping brings the status that `systemctl status` shows.
void StartWatchdog(Loop& loop, const std::function<std::string()>& status);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_NOTIFY_H_
