// Mutual TLS between agents. Both sides show a certificate that the authorities in `ca` signed, and both look whether
// it is the other member's (identity.h): the caller before it says a word, the callee before it believes one.
//
// The files are looked at every `refresh`; a change holds for connections made from then on. A link lives an hour at
// most (grpc_links.h), so no connection outlives its certificate by more. Certificate and key are exchanged by renaming
// new files over the old, the key first; while they do not belong together no connection is made, and the next look
// mends it.
#ifndef CKPTD_DAEMON_TRANSPORT_CREDENTIALS_H_
#define CKPTD_DAEMON_TRANSPORT_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/files.h"
#include "daemon/transport/identity.h"
#include "daemon/transport/tls_options.h"

namespace ckptd::transport {

// Any thread.
class Credentials {
 public:
  // Errors: INVALID_ARGUMENT with the key of the configuration that is missing or no PEM file; those of reading.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Credentials>> Create(Files& files, const TlsOptions& options,
                                                                           const std::string& cluster);

  [[nodiscard]] TlsMode mode() const { return mode_; }
  [[nodiscard]] std::shared_ptr<grpc::ServerCredentials> ForServer() const;
  // For a connection to this member and nobody else.
  [[nodiscard]] std::shared_ptr<grpc::ChannelCredentials> ForPeer(const std::string& name) const;
  // At the callee: whether the caller's certificate is this member's. Always, without TLS.
  [[nodiscard]] absl::Status CheckCaller(const CertificateNames& names, const std::string& name) const;

 private:
  Credentials(TlsMode mode, std::string cluster) : mode_(mode), cluster_(std::move(cluster)) {}

  const TlsMode mode_;
  const std::string cluster_;
  std::shared_ptr<grpc::experimental::FileWatcherCertificateProvider> provider_;  // null without TLS
};

// Of the peer of a call, as TLS verified them.
[[nodiscard]] CertificateNames NamesOf(const grpc::AuthContext& context);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_CREDENTIALS_H_
