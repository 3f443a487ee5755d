// Bulk connections over TCP: a listener, and one thread, which greets (greeting.h) and says when sockets are ready; the
// bytes themselves move on the threads that drive the streams (socket_stream.h), as they are (OpenTcpPort) or
// encrypted (tls/tls_port.h).
//
// Who may speak. Where the wire knows certificates, whoever dials looks whether he reached the member that he meant,
// and whoever was dialled compares the certificate with the name in MoveHello (BulkGuest::names), to which the token
// was handed out. Where it knows none, the token alone says who it is: that is for networks that nobody else is on. Of
// strangers, who have said no MoveHello yet, there are a few for a few seconds: the oldest makes room for the next.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_SOCKET_PORT_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_SOCKET_PORT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/transport/bulk_port.h"
#include "daemon/transport/sockets/wire.h"

namespace ckptd::transport {

struct SocketPortOptions {
  std::string host;         // numeric: where it listens; empty is all addresses of this machine
  uint16_t port = 0;        // 0 = any free one
  uint8_t dscp = 0;         // marks the packets of its connections; 0 does not
  std::string cluster;      // of certificates (identity.h)
  size_t most_guests = 64;  // connections that others made, at once; more are refused
  size_t most_strangers = 64;
  Nanos hello_patience = std::chrono::seconds(5);
};

class SocketPort : public BulkPort {
 public:
  // REFUSED: nobody can listen there.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<SocketPort>> Open(std::unique_ptr<Wires> wires, BulkWay way,
                                                                        const SocketPortOptions& options);
  // Cuts off what is left, and waits for its thread, but for no peer. Whoever drives a stream has let go of it.
  ~SocketPort() override = default;
  // Any thread: connections that others made, past MoveHello; and before it.
  [[nodiscard]] virtual size_t guests() const = 0;
  [[nodiscard]] virtual size_t strangers() const = 0;
  // Any thread: connections there have been, dialled and accepted.
  [[nodiscard]] virtual uint64_t made() const = 0;
};

// Plain TCP. The process ignores SIGPIPE: sendfile(2) cannot be told not to raise it.
[[nodiscard]] absl::StatusOr<std::unique_ptr<SocketPort>> OpenTcpPort(const SocketPortOptions& options);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_SOCKET_PORT_H_
