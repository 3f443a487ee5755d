// Text from outside as an error repeats it: printable, at most 80 bytes.
#ifndef CKPTD_DAEMON_TRANSPORT_SHOWN_H_
#define CKPTD_DAEMON_TRANSPORT_SHOWN_H_

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace ckptd::transport {

inline constexpr size_t kMostShown = 80;

[[nodiscard]] inline std::string Shown(absl::string_view text, size_t most = kMostShown) {
  std::string out(text.substr(0, most));
  for (char& c : out) c = absl::ascii_isprint(static_cast<unsigned char>(c)) ? c : '?';
  return out;
}

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SHOWN_H_
