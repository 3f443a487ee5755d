// What makes one Key of ckptd.toml for one type of member of Config: how its values are checked, read and printed.
// `field` is a generic lambda that names the member in a Config or a const Config (CKPTD_FIELD).
#ifndef CKPTD_DAEMON_CONFIG_KEY_BUILDERS_H_
#define CKPTD_DAEMON_CONFIG_KEY_BUILDERS_H_

#include <bit>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "daemon/config/keys.h"

#define CKPTD_FIELD(member) \
  [](auto& config) -> auto& { return config.member; }

namespace ckptd {

inline constexpr size_t kSocketPathBytes = 107;  // sockaddr_un.sun_path less its NUL
inline constexpr size_t kPathBytes = 1024;       // leaves room for our names below PATH_MAX

[[nodiscard]] absl::Status Expected(absl::string_view what);

// In the largest unit that divides it: what is printed reads back as the same number.
[[nodiscard]] std::string ExactBytes(uint64_t bytes);
[[nodiscard]] std::string ExactDuration(Nanos duration);

[[nodiscard]] bool IsPath(absl::string_view text, size_t limit);
[[nodiscard]] bool IsName(absl::string_view text);
// Printable and short here; what it must be is for whoever reads it to say.
[[nodiscard]] bool IsLine(absl::string_view text);

template <typename Field, typename Valid>
[[nodiscard]] Key Text(std::string name, Key::Effect effect, Field field, std::string type, Valid valid,
                       std::string help) {
  auto set = [field, valid, type](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    if (text == nullptr || !valid(*text)) return Expected(absl::StrCat("a string: ", type));
    field(*config) = *text;
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) { return TomlScalar(field(config)); };
  return {std::move(name), effect, std::move(type), std::move(help), set, get};
}

template <typename Field>
[[nodiscard]] Key Count(std::string name, Key::Effect effect, Field field, uint64_t low, uint64_t high,
                        std::string help) {
  std::string type = absl::StrCat(low, " to ", high);
  auto set = [field, low, high, type](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* number = std::get_if<int64_t>(&value);
    bool fits = number != nullptr && *number >= 0 && std::in_range<uint64_t>(*number) &&
                static_cast<uint64_t>(*number) >= low && static_cast<uint64_t>(*number) <= high;
    if (!fits) return Expected(absl::StrCat("an integer from ", type));
    field(*config) = static_cast<uint64_t>(*number);
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) { return TomlScalar(static_cast<int64_t>(field(config))); };
  return {std::move(name), effect, type, std::move(help), set, get};
}

enum class Shape { kAny, kPowerOfTwo };

template <typename Field>
[[nodiscard]] Key Size(std::string name, Field field, Key::Effect effect, Shape shape, uint64_t low, uint64_t high,
                       std::string help) {
  std::string type = absl::StrCat(shape == Shape::kPowerOfTwo ? "power of two, " : "", ExactBytes(low), " to ",
                                  ExactBytes(high), ", or auto");
  auto set = [=](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    if (text != nullptr && *text == "auto") return field(*config).bytes = 0, absl::OkStatus();
    auto bytes = ParseBytes(text == nullptr ? "" : *text);
    bool fits = bytes.ok() && *bytes >= low && *bytes <= high;
    if (fits && shape == Shape::kPowerOfTwo) fits = std::has_single_bit(*bytes);
    if (!fits) return Expected(absl::StrCat("a size in quotes, such as \"64 MiB\": ", type));
    field(*config).bytes = *bytes;
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) {
    uint64_t bytes = field(config).bytes;
    return TomlScalar(bytes == 0 ? "auto" : ExactBytes(bytes));
  };
  return {std::move(name), effect, type, std::move(help), set, get};
}

template <typename Field>
[[nodiscard]] Key Duration(std::string name, Key::Effect effect, Field field, Nanos low, Nanos high, std::string help) {
  std::string type = absl::StrCat(ExactDuration(low), " to ", ExactDuration(high));
  auto set = [=](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    auto duration = ParseDuration(text == nullptr ? "" : *text);
    if (!duration.ok() || *duration < low || *duration > high)
      return Expected(absl::StrCat("a duration in quotes, such as \"30s\": ", type));
    field(*config) = *duration;
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) { return TomlScalar(ExactDuration(field(config))); };
  return {std::move(name), effect, type, std::move(help), set, get};
}

template <typename Field, typename Enum>
[[nodiscard]] Key Choice(std::string name, Key::Effect effect, Field field,
                         std::vector<std::pair<const char*, Enum>> values, std::string help) {
  std::string type = absl::StrJoin(values, " | ", [](std::string* out, const auto& value) { *out += value.first; });
  auto set = [=](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    for (const auto& [word, meaning] : values)
      if (text != nullptr && *text == word) return field(*config) = meaning, absl::OkStatus();
    return Expected(absl::StrCat("one of ", type));
  };
  auto get = [=](const Config& config) {
    for (const auto& [word, meaning] : values)
      if (meaning == field(config)) return TomlScalar(std::string(word));
    return TomlScalar(std::string());
  };
  return {std::move(name), effect, type, std::move(help), set, get};
}

// Octal in quotes: TOML's own 0o660 would print back as 432.
template <typename Field>
[[nodiscard]] Key Mode(std::string name, Key::Effect effect, Field field, std::string help) {
  auto set = [=](const TomlScalar& value, Config* config) -> absl::Status {
    const auto* text = std::get_if<std::string>(&value);
    uint32_t mode = 0;
    bool fits = text != nullptr && (text->size() == 3 || (text->size() == 4 && (*text)[0] == '0'));
    if (fits) {
      auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), mode, 8);
      fits = error == std::errc() && end == text->data() + text->size();
    }
    if (!fits) return Expected("permission bits in quotes, such as \"0660\"");
    field(*config) = mode;
    return absl::OkStatus();
  };
  auto get = [field](const Config& config) { return TomlScalar(absl::StrFormat("%04o", field(config))); };
  return {std::move(name), effect, "octal mode", std::move(help), set, get};
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_CONFIG_KEY_BUILDERS_H_
