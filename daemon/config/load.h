// Settings from the text of ckptd.toml. No I/O: the caller read the file.
#ifndef CKPTD_DAEMON_CONFIG_LOAD_H_
#define CKPTD_DAEMON_CONFIG_LOAD_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/config/config.h"

namespace ckptd {

// `defaults` changed by `text`. `file` is for errors, which are INVALID_ARGUMENT and name file, line and key:
// "/etc/ckptd/ckptd.toml:7: unknown key region.slot; did you mean region.slots?". All errors of one file are told at
// once, one a line.
[[nodiscard]] absl::StatusOr<Config> LoadConfig(absl::string_view text, absl::string_view file, const Config& defaults);

// What holds between keys and cannot be said of one alone. LoadConfig has called it; for a Config made otherwise.
[[nodiscard]] absl::Status CheckConfig(const Config& config);

// The effective settings as a file that LoadConfig reads back to an equal Config: `ckptd --check-config`.
[[nodiscard]] std::string PrintConfig(const Config& config);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_CONFIG_LOAD_H_
