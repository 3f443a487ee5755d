// Bytes and durations for people, and back from the configuration file.
#ifndef CKPTD_DAEMON_BASE_UNITS_H_
#define CKPTD_DAEMON_BASE_UNITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"

namespace ckptd {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;
inline constexpr uint64_t kGiB = 1024 * kMiB;

[[nodiscard]] constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

[[nodiscard]] std::string FormatBytes(uint64_t bytes);                      // "1.5 GiB"
[[nodiscard]] std::string FormatDuration(Nanos duration);                   // "340 ms", "12.3 s", "4m10s"
[[nodiscard]] absl::StatusOr<uint64_t> ParseBytes(absl::string_view text);  // "64 MiB", "2GiB", "4096"
[[nodiscard]] absl::StatusOr<Nanos> ParseDuration(absl::string_view text);  // "30s", "250ms", "5m", "2h"

}  // namespace ckptd

#endif  // CKPTD_DAEMON_BASE_UNITS_H_
