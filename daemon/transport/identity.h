// Which member of which cluster a certificate speaks for. The authority that signed it vouches for its names:
//
//   URI spiffe://CLUSTER/ckptd/NAME   (SPIFFE: an X.509-SVID, of which a certificate has exactly one)
//   DNS NAME                          where there is no spiffe URI; it names no cluster, so its authority signs for one
//
// Names are compared byte by byte: no wildcards, no letter cases, and the common name counts for nothing.
#ifndef CKPTD_DAEMON_TRANSPORT_IDENTITY_H_
#define CKPTD_DAEMON_TRANSPORT_IDENTITY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace ckptd::transport {

// The subject alternative names of one certificate.
struct CertificateNames {
  std::vector<std::string> uris;
  std::vector<std::string> dns;
};

[[nodiscard]] std::string SpiffeId(absl::string_view cluster, absl::string_view name);

// PERMISSION when the certificate is not that member's: what it is for, and what it should be for.
[[nodiscard]] absl::Status CheckIdentity(const CertificateNames& names, absl::string_view cluster,
                                         absl::string_view name);

// "127.0.0.1" to "127.255.255.255", "::1"; no names, since a name may lead anywhere.
[[nodiscard]] bool IsLoopbackHost(absl::string_view host);
// Of "HOST:PORT", "[IPv6]:PORT".
[[nodiscard]] bool IsLoopbackAddress(absl::string_view address);
// Agents may speak without TLS on one machine only: INVALID_ARGUMENT with the first address that is not of it.
[[nodiscard]] absl::Status CheckPlaintext(const std::vector<std::string>& addresses);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_IDENTITY_H_
