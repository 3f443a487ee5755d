#include "daemon/app/notify.h"

#include <systemd/sd-daemon.h>

#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

void Ping(Loop& loop, Nanos interval) {
  sd_notify(0, "WATCHDOG=1");
  loop.After(interval, [&loop, interval] { Ping(loop, interval); });
}

}  // namespace

void NotifyReady(const std::string& status) { sd_notify(0, absl::StrCat("READY=1\nSTATUS=", status).c_str()); }
void NotifyStatus(const std::string& status) { sd_notify(0, absl::StrCat("STATUS=", status).c_str()); }
void NotifyReloading() { sd_notify(0, "RELOADING=1"); }

void NotifyStopping(const std::string& status, Nanos more_time) {
  int64_t micros = std::chrono::duration_cast<std::chrono::microseconds>(more_time).count();
  sd_notify(0, absl::StrCat("STOPPING=1\nEXTEND_TIMEOUT_USEC=", micros, "\nSTATUS=", status).c_str());
}

void StartWatchdog(Loop& loop) {
  uint64_t micros = 0;
  if (sd_watchdog_enabled(0, &micros) <= 0) return;
  Ping(loop, std::chrono::microseconds(micros / 2));
}

}  // namespace ckptd
