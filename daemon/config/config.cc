#include "daemon/config/config.h"

#include "absl/strings/str_cat.h"

namespace ckptd {

Defaults DefaultConfig(ConfigMode mode, const Surroundings& surroundings) {
  Defaults defaults;
  Config& config = defaults.config;
  if (mode == ConfigMode::kSystem) return defaults;

  auto variable = [&](absl::string_view name) { return surroundings.environment(name).value_or(""); };
  std::string runtime = variable("XDG_RUNTIME_DIR");
  std::string sockets = absl::StrCat(runtime, "/ckptd");
  if (runtime.empty()) {
    sockets = absl::StrCat("/tmp/ckptd-", surroundings.uid);
    defaults.notes.push_back(absl::StrCat("XDG_RUNTIME_DIR is not set: the sockets are in ", sockets));
  }
  config.agent.socket = absl::StrCat(sockets, "/ckptd.sock");
  config.agent.admin_socket = absl::StrCat(sockets, "/admin.sock");
  config.region.dir = absl::StrCat("/dev/shm/ckptd-", surroundings.uid);
  std::string home = variable("HOME");
  config.storage.root = home.empty() ? "" : absl::StrCat(home, "/.local/share/ckptd");
  config.agent.state_dir = home.empty() ? "" : absl::StrCat(home, "/.local/state/ckptd");
  config.security.socket_mode = 0600;
  config.metrics.listen = "off";
  return defaults;
}

}  // namespace ckptd
