// Every key of ckptd.toml, once. Loading, checking, printing, reloading, the table in README.md and
// deploy/config/ckptd.toml all come from this table; defaults come from config.h.
#ifndef CKPTD_DAEMON_CONFIG_KEYS_H_
#define CKPTD_DAEMON_CONFIG_KEYS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "daemon/config/config.h"

namespace ckptd {

// A value as TOML has it. Quantities with units are strings; nothing is converted silently.
using TomlScalar = std::variant<int64_t, std::string>;

struct Section {
  absl::string_view name;  // "region"
  absl::string_view help;
};

struct Key {
  enum Effect { kLive, kRestart };

  std::string name;  // "region.slots"
  Effect effect;
  std::string type;  // for people: "path", "1 to 64", "skip | wait"
  std::string help;  // one line
  // Leaves the Config alone when it fails; the message says what was expected: `expected an integer from 1 to 64`.
  std::function<absl::Status(const TomlScalar& value, Config* config)> set;
  // What `set` takes; for sizes and durations the exact value in its largest whole unit.
  std::function<TomlScalar(const Config& config)> get;
};

// In the order in which they are printed. Keys of one section stand together.
[[nodiscard]] absl::Span<const Section> Sections();
[[nodiscard]] absl::Span<const Key> Keys();

// The value as it stands in a file: `2`, `"64 MiB"`.
[[nodiscard]] std::string TomlText(const TomlScalar& value);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_CONFIG_KEYS_H_
