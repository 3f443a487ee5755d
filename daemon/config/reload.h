// SIGHUP. Keys are `live` (take effect at once) or `restart`. A reload applies all live keys of the new file or, when
// the file has any error, none; restart keys that differ keep their old value and are named.
#ifndef CKPTD_DAEMON_CONFIG_RELOAD_H_
#define CKPTD_DAEMON_CONFIG_RELOAD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/config.h"

namespace ckptd {

struct Reloaded {
  Config config;                          // the running settings with the new live values
  std::vector<std::string> applied;       // live keys that changed: "agent.log_level"
  std::vector<std::string> need_restart;  // keys that differ and were not applied
};

// `defaults` as at the start of the agent: a key that left the file returns to its default. Errors as LoadConfig.
[[nodiscard]] absl::StatusOr<Reloaded> ReloadConfig(const Config& running, absl::string_view text,
                                                    absl::string_view file, const Config& defaults);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_CONFIG_RELOAD_H_
