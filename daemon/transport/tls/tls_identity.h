// This node's certificate, its key, and whom it believes, as TLS 1.3 takes them, out of the same files as those of gRPC
// (credentials.h) and by the same rules: they are looked at every `refresh`, a change holds for connections made from
// then on, and while key and certificate do not belong together no connection is made.
//
// No session is resumed and no early data taken, so that each connection shows its certificates.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_TLS_IDENTITY_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_TLS_IDENTITY_H_

#include <openssl/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/os/files.h"
#include "daemon/transport/identity.h"
#include "daemon/transport/tls_options.h"

namespace ckptd::transport {

// One thread.
class TlsIdentity {
 public:
  // `files` outlives it. options.mode is kMutual.
  TlsIdentity(Files& files, TlsOptions options, Nanos refresh)
      : files_(files), options_(std::move(options)), refresh_(refresh) {}

  // Between two looks what the last one said. INVALID_ARGUMENT with the key of the configuration whose file is wrong;
  // those of reading.
  [[nodiscard]] absl::StatusOr<std::shared_ptr<SSL_CTX>> Current(Nanos now);

 private:
  struct Texts {
    std::string ca;
    std::string cert;
    std::string key;
    bool operator==(const Texts&) const = default;
  };
  [[nodiscard]] absl::Status Look();
  [[nodiscard]] absl::StatusOr<Texts> Read();
  [[nodiscard]] absl::StatusOr<std::shared_ptr<SSL_CTX>> Make(const Texts& texts) const;
  [[nodiscard]] absl::Status UseCertificate(SSL_CTX* context, const std::string& pem) const;
  [[nodiscard]] absl::Status UseKey(SSL_CTX* context, const std::string& pem) const;
  [[nodiscard]] absl::Status UseAuthorities(SSL_CTX* context, const std::string& pem) const;

  Files& files_;
  const TlsOptions options_;
  const Nanos refresh_;
  Nanos look_again_{0};
  Texts texts_;
  std::shared_ptr<SSL_CTX> context_;  // of texts_; null:
  absl::Status why_not_;
};

// The subject alternative names of the other end's certificate, which was verified.
[[nodiscard]] CertificateNames NamesOfPeer(const SSL* ssl);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_TLS_IDENTITY_H_
