// The file that the settings come from, the same at the start and at a reload.
#ifndef CKPTD_DAEMON_APP_CONFIG_FILE_H_
#define CKPTD_DAEMON_APP_CONFIG_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "daemon/os/files.h"

namespace ckptd {

struct ConfigFile {
  std::string named;  // --config; "" = none
  bool user = false;  // --user: the system's file is not this agent's
  std::string of_system = "/etc/ckptd/ckptd.toml";

  // For errors, too.
  [[nodiscard]] const std::string& path() const { return named.empty() ? of_system : named; }
};

// Its text; "" where none is named and the system's is missing or another agent's. One that is named and missing is
// INVALID_ARGUMENT.
[[nodiscard]] absl::StatusOr<std::string> ReadConfigFile(Files& files, const ConfigFile& file);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_CONFIG_FILE_H_
