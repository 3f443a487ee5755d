// Bulk connections with mutual TLS 1.3: a port of sockets (sockets/socket_port.h) whose ends show the certificates of
// their links.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_TLS_PORT_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_TLS_PORT_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "daemon/os/files.h"
#include "daemon/transport/sockets/socket_port.h"
#include "daemon/transport/tls/tls_wire.h"
#include "daemon/transport/tls_options.h"

namespace ckptd::transport {

struct TlsPortOptions : SocketPortOptions {
  TlsOptions tls;                // kMutual
  std::optional<Nanos> refresh;  // instead of tls.refresh
  uint64_t rekey_bytes = TlsWire::kRekeyBytes;
};

// `files` outlives it. REFUSED: nobody can listen there. Certificates are looked at when they are needed.
[[nodiscard]] absl::StatusOr<std::unique_ptr<SocketPort>> OpenTlsPort(Files& files, const TlsPortOptions& options);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_TLS_PORT_H_
