#include "daemon/transport/sockets/tcp_pair.h"

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "daemon/transport/testing/port_pair.h"

namespace ckptd::transport {

SocketPortOptions TcpOptions() {
  SocketPortOptions options;
  options.host = "127.0.0.1";
  return options;
}

std::unique_ptr<SocketPort> MustOpenTcp(const SocketPortOptions& options) {
  std::signal(SIGPIPE, SIG_IGN);
  absl::StatusOr<std::unique_ptr<SocketPort>> port = OpenTcpPort(options);
  if (port.ok()) return *std::move(port);
  std::cerr << port.status() << "\n";
  std::abort();
}

FakeBulk::Ends ConnectByTcp(FakeBulkFaults faults) {
  static const std::unique_ptr<SocketPort> dials = MustOpenTcp(TcpOptions());
  static const std::unique_ptr<SocketPort> serves = MustOpenTcp(TcpOptions());
  return ConnectPorts(*dials, *serves, "b", std::move(faults));
}

}  // namespace ckptd::transport
