// Ports of plain TCP inside this process, and both ends of a connection between two.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_TCP_PAIR_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_TCP_PAIR_H_

#include <memory>

#include "daemon/transport/sockets/socket_port.h"
#include "daemon/transport/testing/fake_bulk.h"

namespace ckptd::transport {

// Of loopback.
[[nodiscard]] SocketPortOptions TcpOptions();
// Ends the process when there is none; from then on it ignores SIGPIPE, as an agent does.
[[nodiscard]] std::unique_ptr<SocketPort> MustOpenTcp(const SocketPortOptions& options);

// Between two ports that live as long as the process.
[[nodiscard]] FakeBulk::Ends ConnectByTcp(FakeBulkFaults faults = {});

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_TCP_PAIR_H_
