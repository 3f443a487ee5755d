#include "daemon/base/units.h"

#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/errors.h"

namespace ckptd {
namespace {

struct Unit {
  absl::string_view name;
  double factor;
};

constexpr std::array<Unit, 10> kByteUnits = {{{"", 1},
                                              {"B", 1},
                                              {"KiB", double(kKiB)},
                                              {"MiB", double(kMiB)},
                                              {"GiB", double(kGiB)},
                                              {"TiB", 1024.0 * kGiB},
                                              {"K", double(kKiB)},
                                              {"M", double(kMiB)},
                                              {"G", double(kGiB)},
                                              {"T", 1024.0 * kGiB}}};
constexpr std::array<Unit, 6> kTimeUnits = {
    {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}}};

template <size_t kCount>
absl::StatusOr<double> ParseWithUnit(absl::string_view text, const std::array<Unit, kCount>& units,
                                     const char* example) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  size_t digits = 0;
  while (digits < rest.size() && (absl::ascii_isdigit(rest[digits]) || rest[digits] == '.')) ++digits;
  double value = 0;
  absl::string_view unit = absl::StripAsciiWhitespace(rest.substr(digits));
  if (digits > 0 && absl::SimpleAtod(rest.substr(0, digits), &value)) {
    for (const Unit& known : units) {
      if (known.name == unit && value * known.factor < 9e18) return value * known.factor;
    }
  }
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("\"", text, "\" is not a quantity such as ", example));
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%d B", bytes) : absl::StrFormat("%.1f %s", value, kNames[unit]);
}

std::string FormatDuration(Nanos duration) {
  double seconds = static_cast<double>(duration.count()) / 1e9;
  if (seconds < 1) return absl::StrFormat("%.0f ms", seconds * 1e3);
  if (seconds < 60) return absl::StrFormat("%.1f s", seconds);
  auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
}

absl::StatusOr<uint64_t> ParseBytes(absl::string_view text) {
  auto value = ParseWithUnit(text, kByteUnits, "64 MiB");
  if (!value.ok()) return value.status();
  return static_cast<uint64_t>(*value);
}

absl::StatusOr<Nanos> ParseDuration(absl::string_view text) {
  auto value = ParseWithUnit(text, kTimeUnits, "30s");
  if (!value.ok()) return value.status();
  return Nanos(static_cast<int64_t>(*value));
}

}  // namespace ckptd
