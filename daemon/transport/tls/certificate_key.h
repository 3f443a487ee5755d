// Whether a certificate and a private key belong together.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_CERTIFICATE_KEY_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_CERTIFICATE_KEY_H_

#include <string>

#include "absl/status/statusor.h"

namespace ckptd::transport {

// Both as PEM; of several certificates it is the first one's. INVALID_ARGUMENT when `key` has no key, or one that wants
// a password, or `certificate` no certificate.
[[nodiscard]] absl::StatusOr<bool> IsKeyOf(const std::string& certificate, const std::string& key);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_CERTIFICATE_KEY_H_
