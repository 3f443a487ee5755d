// Texts for people, from the table of keys. A test compares them with the files they are pasted into.
#ifndef CKPTD_DAEMON_CONFIG_DOCS_H_
#define CKPTD_DAEMON_CONFIG_DOCS_H_

#include <string>

namespace ckptd {

// deploy/config/ckptd.toml: every key with its help, commented out at its default.
[[nodiscard]] std::string ConfigFileText();

// README.md, between "<!-- config:begin -->" and "<!-- config:end -->".
[[nodiscard]] std::string ConfigTableText();

}  // namespace ckptd

#endif  // CKPTD_DAEMON_CONFIG_DOCS_H_
