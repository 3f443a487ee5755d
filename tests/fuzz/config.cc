// Feeds a text to the configuration's loader (daemon/config), as at the start and as at a reload.
//
// What is accepted must print as a file that loads to the same settings; a refusal must name the file; and a reload
// must accept what a start accepts.
#include "daemon/config/load.h"
#include "daemon/config/reload.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

// A message of some 100 bytes for a key of two; and the library makes a table of some 200 bytes for `[a]`.
const Allowed kAllowed = {256 << 10, 256};

void Run(Input input) {
  const absl::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const Config defaults;
  auto config = LoadConfig(text, "ckptd.toml", defaults);
  auto reloaded = ReloadConfig(defaults, text, "ckptd.toml", defaults);
  FUZZ_CHECK(config.ok() == reloaded.ok());
  if (!config.ok()) {
    FUZZ_CHECK(config.status().message().substr(0, 11) == "ckptd.toml:");
    return;
  }
  auto again = LoadConfig(PrintConfig(*config), "printed", defaults);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(*again == *config);
  FUZZ_CHECK(CheckConfig(*config).ok());
}

}  // namespace ckptd::fuzz
