#include "daemon/config/reload.h"

#include "daemon/base/status_macros.h"
#include "daemon/config/keys.h"
#include "daemon/config/load.h"

namespace ckptd {

absl::StatusOr<Reloaded> ReloadConfig(const Config& running, absl::string_view text, absl::string_view file,
                                      const Config& defaults) {
  CKPTD_ASSIGN_OR_RETURN(Config wanted, LoadConfig(text, file, defaults));
  Reloaded reloaded{running, {}, {}};
  for (const Key& key : Keys()) {
    TomlScalar value = key.get(wanted);
    if (value == key.get(running)) continue;
    if (key.effect == Key::kRestart) {
      reloaded.need_restart.push_back(key.name);
      continue;
    }
    CKPTD_RETURN_IF_ERROR(key.set(value, &reloaded.config));
    reloaded.applied.push_back(key.name);
  }
  CKPTD_RETURN_IF_ERROR(CheckConfig(reloaded.config));  // new live values beside old restart values
  return reloaded;
}

}  // namespace ckptd
