// Bulk connections over TCP with mutual TLS 1.3: a listener, and one thread, which greets (tls_greeting.h) and says
// when sockets are ready; the bytes themselves move on the threads that drive the streams (tls_stream.h).
//
// Who may speak. Both ends show the certificates of their links. Whoever dials looks whether he reached the member that
// he meant; whoever was dialled compares the certificate with the name in MoveHello (BulkGuest::names), to which the
// token was handed out. Of strangers, who have said no MoveHello yet, there are a few for a few seconds: the oldest
// makes room for the next.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_TLS_PORT_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_TLS_PORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/os/files.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/tls/tls_wire.h"
#include "daemon/transport/tls_options.h"

namespace ckptd::transport {

struct TlsPortOptions {
  std::string host;              // numeric: where it listens; empty is all addresses of this machine
  uint16_t port = 0;             // 0 = any free one
  uint8_t dscp = 0;              // marks the packets of its connections; 0 does not
  std::string cluster;           // of certificates (identity.h)
  TlsOptions tls;                // kMutual
  std::optional<Nanos> refresh;  // instead of tls.refresh
  size_t most_guests = 64;       // connections that others made, at once; more are refused
  size_t most_strangers = 64;
  Nanos hello_patience = std::chrono::seconds(5);
  uint64_t rekey_bytes = TlsWire::kRekeyBytes;
};

class TlsPort : public BulkPort {
 public:
  // `files` outlives it. REFUSED: nobody can listen there. Certificates are looked at when they are needed.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<TlsPort>> Open(Files& files, const TlsPortOptions& options);
  // Cuts off what is left, and waits for its thread, but for no peer. Whoever drives a stream has let go of it.
  ~TlsPort() override = default;
  // Any thread: connections that others made, past MoveHello; and before it.
  [[nodiscard]] virtual size_t guests() const = 0;
  [[nodiscard]] virtual size_t strangers() const = 0;
  // Any thread: connections there have been, dialled and accepted.
  [[nodiscard]] virtual uint64_t made() const = 0;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_TLS_PORT_H_
