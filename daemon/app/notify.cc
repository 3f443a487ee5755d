#include "daemon/app/notify.h"

#include <systemd/sd-daemon.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace ckptd {
namespace {

constexpr Nanos kStatusEvery = std::chrono::seconds(5);

// A status is a line of a message that has others.
std::string OneLine(const std::string& text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

void Ping(Loop& loop, Nanos interval, const std::function<std::string()>& status) {
  sd_notify(0, absl::StrCat("WATCHDOG=1\nSTATUS=", OneLine(status())).c_str());
  loop.After(interval, [&loop, interval, status] { Ping(loop, interval, status); });
}

}  // namespace

void NotifyReady(const std::string& status) { sd_notify(0, absl::StrCat("READY=1\nSTATUS=", OneLine(status)).c_str()); }
void NotifyReloading() { sd_notify(0, "RELOADING=1"); }

void NotifyStopping(const std::string& status, Nanos more_time) {
  int64_t micros = std::chrono::duration_cast<std::chrono::microseconds>(more_time).count();
  sd_notify(0, absl::StrCat("STOPPING=1\nEXTEND_TIMEOUT_USEC=", micros, "\nSTATUS=", OneLine(status)).c_str());
}

void StartWatchdog(Loop& loop, const std::function<std::string()>& status) {
  uint64_t micros = 0;
  if (sd_watchdog_enabled(0, &micros) <= 0) return;
  Ping(loop, std::min<Nanos>(std::chrono::microseconds(micros / 2), kStatusEvery), status);
}

}  // namespace ckptd
