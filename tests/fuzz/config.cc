// Feeds a text to the configuration's loader (daemon/config), as at the start and as at a reload.
//
// What is accepted must be within what the agent relies on, and must print as a file that loads to the same settings; a
// refusal must name the file; and a reload must accept what a start accepts.
#include <bit>

#include "daemon/config/load.h"
#include "daemon/config/reload.h"
#include "proto/local/region.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd::fuzz {

// A message of some 100 bytes for a key of two; and the library makes a table of some 200 bytes for `[a]`.
const Allowed kAllowed = {256 << 10, 256};

namespace {

bool IsPath(const std::string& text, size_t longest) {
  return text.size() > 1 && text.size() <= longest && text[0] == '/' && text.find('\0') == std::string::npos;
}

// What the rest of the agent relies on.
void CheckRules(const Config& config) {
  constexpr size_t kSocketPath = 107;  // sockaddr_un
  FUZZ_CHECK(IsPath(config.agent.socket, kSocketPath));
  FUZZ_CHECK(config.agent.admin_socket == "off" || IsPath(config.agent.admin_socket, kSocketPath));
  FUZZ_CHECK(IsPath(config.region.dir, 1024) && IsPath(config.storage.root, 1024));
  FUZZ_CHECK(config.region.slots >= 2 && config.region.slots <= kMaxSlots && config.storage.write_depth > 0);
  const uint64_t chunk = config.region.chunk_bytes.bytes;
  FUZZ_CHECK(chunk == 0 || (std::has_single_bit(chunk) && chunk >= kMinChunkBytes && chunk <= kMaxChunkBytes));
  FUZZ_CHECK(config.security.socket_mode <= 0777);
  const std::string& listen = config.metrics.listen;
  FUZZ_CHECK(listen == "off" || listen.rfind("127.0.0.1:", 0) == 0 || listen.rfind("[::1]:", 0) == 0);
  FUZZ_CHECK(config.agent.drain_timeout >= Nanos(0) && config.storage.timeout > Nanos(0));
  FUZZ_CHECK(config.durability.flush_every > 0 && config.retention.keep_last > 0);
}

}  // namespace

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
  CheckRules(*config);
  auto again = LoadConfig(PrintConfig(*config), "printed", defaults);
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK(*again == *config);
  FUZZ_CHECK(CheckConfig(*config).ok());
}

}  // namespace ckptd::fuzz
