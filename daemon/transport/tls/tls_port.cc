#include "daemon/transport/tls/tls_port.h"

#include <utility>

#include "daemon/base/status_macros.h"
#include "daemon/transport/tls/tls_identity.h"

namespace ckptd::transport {
namespace {

class TlsWires final : public Wires {
 public:
  TlsWires(Files& files, const TlsPortOptions& options)
      : identity_(files, options.tls, options.refresh.value_or(Nanos(options.tls.refresh))),
        rekey_bytes_(options.rekey_bytes) {}
  [[nodiscard]] absl::StatusOr<std::unique_ptr<Wire>> Make(UniqueFd fd, Wire::Side side, Nanos now) override {
    CKPTD_ASSIGN_OR_RETURN(const std::shared_ptr<SSL_CTX> context, identity_.Current(now));
    return TlsWire::Make(std::move(fd), context, side, rekey_bytes_);
  }

 private:
  TlsIdentity identity_;
  const uint64_t rekey_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SocketPort>> OpenTlsPort(Files& files, const TlsPortOptions& options) {
  return SocketPort::Open(std::make_unique<TlsWires>(files, options), BulkWay::kTls, options);
}

}  // namespace ckptd::transport
