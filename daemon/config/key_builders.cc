#include "daemon/config/key_builders.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "daemon/base/errors.h"

namespace ckptd {
namespace {

struct Unit {
  const char* name;
  uint64_t factor;
};

template <size_t kCount>
std::string ExactText(uint64_t value, const std::array<Unit, kCount>& units) {
  for (const Unit& unit : units)
    if (value != 0 && value % unit.factor == 0) return absl::StrCat(value / unit.factor, unit.name);
  return absl::StrCat(value, units.back().name);
}

}  // namespace

absl::Status Expected(absl::string_view what) {
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("expected ", what));
}

std::string ExactBytes(uint64_t bytes) {
  constexpr std::array<Unit, 5> kUnits = {
      {{" TiB", 1024 * kGiB}, {" GiB", kGiB}, {" MiB", kMiB}, {" KiB", kKiB}, {" B", 1}}};
  return ExactText(bytes, kUnits);
}

std::string ExactDuration(Nanos duration) {
  constexpr std::array<Unit, 6> kUnits = {{{"h", 3'600'000'000'000},
                                           {"m", 60'000'000'000},
                                           {"s", 1'000'000'000},
                                           {"ms", 1'000'000},
                                           {"us", 1000},
                                           {"ns", 1}}};
  if (duration == Nanos(0)) return "0s";
  return ExactText(static_cast<uint64_t>(duration.count()), kUnits);
}

bool IsPath(absl::string_view text, size_t limit) {
  return text.size() > 1 && text.size() <= limit && text[0] == '/' &&
         !absl::StrContains(text, absl::string_view("\0", 1));
}

bool IsName(absl::string_view text) {
  auto plain = [](unsigned char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; };
  return text.size() <= 253 && std::all_of(text.begin(), text.end(), plain);
}

bool IsLine(absl::string_view text) {
  constexpr size_t kLineBytes = 16 << 10;  // half of what a file may be
  return text.size() <= kLineBytes && std::all_of(text.begin(), text.end(), absl::ascii_isprint);
}

}  // namespace ckptd
