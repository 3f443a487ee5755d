// Bulk connections over UCX: TCP, RDMA where there is any. (Not shared memory between agents of one machine:
// connections that notice a lost peer get none of UCX 1.13.) A listener on a port of its own, one thread for all of
// UCX's work, and a stream for each connection (ucx_stream.h).
//
// What UCX is not. Nothing that passes is encrypted, and UCX trusts whoever reaches its ports: over TCP its own
// protocol lets a peer write to any address of the process (its "put"). The token keeps away whoever follows the rules.
// So this is for networks to which only the cluster's own nodes are connected, and is used only where that was said
// (peers.bulk, peers.bulk_network).
#ifndef CKPTD_DAEMON_TRANSPORT_UCX_UCX_PORT_H_
#define CKPTD_DAEMON_TRANSPORT_UCX_UCX_PORT_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/transport/bulk_port.h"

namespace ckptd::transport {

struct UcxPortOptions {
  std::string library;             // libucp.so.0 of this path; empty: the system's
  std::string host = "127.0.0.1";  // numeric: where it listens
  bool only_loopback = false;      // data, too, goes over the loopback device alone
  size_t most_guests = 64;         // connections that others made, at once; more are refused
  Nanos hello_patience = std::chrono::seconds(5);
};

class UcxPort : public BulkPort {
 public:
  // REFUSED: UCX is not installed, or cannot listen there.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<UcxPort>> Open(const UcxPortOptions& options);
  // Cuts off what is left, and waits for its thread, but for no peer. Whoever drives a stream has let go of it.
  ~UcxPort() override = default;
  // Any thread: connections there are, also those that end.
  [[nodiscard]] virtual size_t streams() const = 0;
  // Any thread: connections there have been, dialled and accepted.
  [[nodiscard]] virtual uint64_t made() const = 0;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_UCX_UCX_PORT_H_
