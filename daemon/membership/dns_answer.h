// What a DNS answer says (RFC 1035, 2782, 3596), read from bytes that nobody vouches for. Pure; any thread.
#ifndef CKPTD_DAEMON_MEMBERSHIP_DNS_ANSWER_H_
#define CKPTD_DAEMON_MEMBERSHIP_DNS_ANSWER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd::membership {

struct DnsRecord {
  std::string host;   // an IP address as text (A, AAAA); a target in lower case, without the last dot (SRV)
  uint16_t port = 0;  // SRV only
  bool operator==(const DnsRecord&) const = default;
};

// The A, AAAA and SRV records of the answer section, sorted, each once; others (CNAME) are passed over. Whose they are
// is not asked: an answer to a name with aliases has several owners. CORRUPT when it does not parse, was cut (TC), or a
// server says an error.
[[nodiscard]] absl::StatusOr<std::vector<DnsRecord>> ParseDnsAnswer(absl::string_view message);

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_DNS_ANSWER_H_
