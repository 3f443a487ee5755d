// Until when the certificates of a PEM file last. Nobody looks here at who signed them.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_CERTIFICATE_ENDS_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_CERTIFICATE_ENDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ckptd::transport {

// Seconds since 1970.
struct CertificateEnds {
  int64_t first = 0;  // a chain is good until then
  int64_t last = 0;   // of several authorities one is good until then
};

// Of all certificates in `pem`. INVALID_ARGUMENT when there is none, or one has no time that can be read.
[[nodiscard]] absl::StatusOr<CertificateEnds> EndsOf(const std::string& pem);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_CERTIFICATE_ENDS_H_
