#include "daemon/config/docs.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "daemon/config/config.h"
#include "daemon/config/keys.h"

namespace ckptd {
namespace {

// Per-user defaults with the variables' names in place of values.
Config UserDefaults() {
  auto environment = [](absl::string_view name) -> std::optional<std::string> {
    return name == "HOME" ? "~" : absl::StrCat("$", name);
  };
  return DefaultConfig(ConfigMode::kUser, Surroundings{environment, "$UID"}).config;
}

std::string SystemDefault(const Key& key) { return TomlText(key.get(Config())); }

// Empty when it is the same as the system's.
std::string UserDefault(const Key& key) {
  std::string text = TomlText(key.get(UserDefaults()));
  return text == SystemDefault(key) ? "" : text;
}

const char* EffectText(const Key& key) { return key.effect == Key::kLive ? "live" : "restart"; }

void AppendKey(const Key& key, absl::string_view leaf, std::string* text) {
  absl::StrAppend(text, "\n# ", key.help, "\n# ", key.type, " (", EffectText(key), ")");
  std::string user = UserDefault(key);
  if (!user.empty()) absl::StrAppend(text, "; per user ", user);
  absl::StrAppend(text, "\n#", leaf, " = ", SystemDefault(key), "\n");
}

// A bar would end the table's cell.
std::string Cell(absl::string_view text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); }

}  // namespace

std::string ConfigFileText() {
  std::string text =
      "# Settings of ckptd. All keys, commented out at their defaults; `ckptd --check-config` prints what is in "
      "effect.\n"
      "# live: SIGHUP (systemctl reload ckptd) takes it over. restart: only a restart does.\n"
      "# Generated from daemon/config/keys.cc; the test config_test says how.\n";
  for (const Section& section : Sections()) {
    absl::StrAppend(&text, "\n# ", section.help, "\n[", section.name, "]\n");
    std::string prefix = absl::StrCat(section.name, ".");
    for (const Key& key : Keys())
      if (absl::StartsWith(key.name, prefix)) AppendKey(key, key.name.substr(prefix.size()), &text);
  }
  return text;
}

std::string ConfigTableText() {
  std::string text =
      "| key | values | default | per user | takes effect | meaning |\n| --- | --- | --- | --- | --- | --- |\n";
  for (const Key& key : Keys()) {
    std::string user = UserDefault(key);
    if (!user.empty()) user = absl::StrCat("`", user, "`");
    absl::StrAppend(&text, "| `", key.name, "` | ", Cell(key.type), " | `", SystemDefault(key), "` | ", user, " | ",
                    EffectText(key), " | ", Cell(key.help), " |\n");
  }
  return text;
}

}  // namespace ckptd
