// Another way than gRPC for the bytes of a Move. Offer, Seal and Describe stay on gRPC, where each end proves who it
// is; their answers say at which port this way is open (copy.proto: tcp_port, tls_port, ucx_port), and hand out the
// one-time token without which nobody gets further here than to say it: the first frame of a connection is the same
// MoveHello, its answer the same HelloResponse. Who is refused hears a Stop instead (transfer_messages.h). Behind it
// are sockets/socket_port.h, tls/tls_port.h and ucx/ucx_port.h.
#ifndef CKPTD_DAEMON_TRANSPORT_BULK_PORT_H_
#define CKPTD_DAEMON_TRANSPORT_BULK_PORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/transport/bulk_stream.h"
#include "daemon/transport/bulk_way.h"
#include "daemon/transport/identity.h"

namespace ckptd::transport {

// A connection that another agent made, from its first frame on. Closed when it is let go of.
class BulkGuest : public BulkStream {
 public:
  // The answer to the first frame, once; then it is a BulkStream.
  virtual void Answer(const std::string& body) = 0;
  // Or why not; afterwards Close().
  virtual void Refuse(const absl::Status& why) = 0;
  [[nodiscard]] virtual std::string address() const = 0;  // for the log
  // Of its certificate, as TLS verified them. Nothing: this way knows no certificates, and the token alone says who it
  // is.
  [[nodiscard]] virtual std::optional<CertificateNames> names() const { return std::nullopt; }
};

struct BulkAddress {
  std::string peer;  // who is meant, as the membership calls it
  std::string host;  // numeric
  uint16_t port = 0;
};

struct OpenedBulk {
  std::shared_ptr<BulkStream> stream;  // closed when it is let go of
  std::string answer;                  // the body of the first frame: at most kMaxHelloFrame bytes
  bool proved = false;                 // it showed the certificate of who was meant
};

// Any thread.
class BulkPort {
 public:
  virtual ~BulkPort() = default;

  // Told on a thread of the port, of each connection, when its first frame has come. Null: connections are refused.
  using Came = std::function<void(std::shared_ptr<BulkGuest> guest, std::string hello)>;
  virtual void Serve(Came came) = 0;
  [[nodiscard]] virtual uint16_t port() const = 0;
  [[nodiscard]] virtual BulkWay way() const = 0;  // never kGrpc

  // To a numeric address, for this peer and, where there are certificates, for nobody else. `opened` once, on a thread
  // of the port, never within the call; not after the port is gone. AGENT_UNREACHABLE, TIMEOUT: this way is not open;
  // PROTOCOL; what the other end's Stop says.
  using Opened = std::function<void(absl::StatusOr<OpenedBulk>)>;
  virtual void Dial(const BulkAddress& to, std::string hello, Nanos patience, Opened opened) = 0;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_BULK_PORT_H_
