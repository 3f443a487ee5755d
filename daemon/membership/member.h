// One node's agent as the others know it, and the limits of what is believed of it. Values only, no I/O; any thread.
#ifndef CKPTD_DAEMON_MEMBERSHIP_MEMBER_H_
#define CKPTD_DAEMON_MEMBERSHIP_MEMBER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd::membership {

inline constexpr size_t kMaxMembers = 10'000;
inline constexpr size_t kMaxNameBytes = 253;     // a DNS name
inline constexpr size_t kMaxAddressBytes = 261;  // a name or [IPv6], a colon, a port
inline constexpr size_t kMaxLabels = 8;
inline constexpr size_t kMaxLabelBytes = 63;  // of a key, of a value

// Failure domains: what fails together has the same value. {"rack": "r3", "zone": "b"}; the host itself is the name.
using Labels = std::map<std::string, std::string>;

struct Member {
  std::string name;     // unique; A-Z a-z 0-9 . _ - : (an address is a name where a source knows no better one)
  std::string address;  // of its agent, for peers: "HOST:PORT", "[IPv6]:PORT"
  Labels domains;
  // Which registration of this name it is: grows with each, compared by number. 0 = the source knows none; then only
  // what the member itself claims tells an old process from a new one.
  uint64_t generation = 0;
  bool operator==(const Member&) const = default;
};

// INVALID_ARGUMENT with the name and what is wrong with it.
[[nodiscard]] absl::Status CheckMember(const Member& member);
[[nodiscard]] absl::Status CheckName(absl::string_view name);

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};
// "HOST:PORT" or "[IPv6]:PORT"; port 1 to 65535. What a host name may be is not checked beyond its characters.
[[nodiscard]] absl::StatusOr<HostPort> ParseAddress(absl::string_view text);
// The inverse: brackets where the host has a colon.
[[nodiscard]] std::string JoinAddress(absl::string_view host, uint16_t port);

// "rack=r3 zone=b": separated by spaces, each key once.
[[nodiscard]] absl::StatusOr<Labels> ParseLabels(absl::string_view text);

// What an error repeats of text from outside: printable, at most 80 bytes.
[[nodiscard]] std::string Shown(absl::string_view text);

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_MEMBER_H_
