#include "daemon/transport/credentials.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMaxPem = 1 << 20;

absl::Status CheckPem(Files& files, const char* key, const std::string& path) {
  if (path.empty())
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("peers.tls is mutual: give ", key, ", a PEM file"));
  CKPTD_ASSIGN_OR_RETURN(const std::string text, ReadOperatorFile(files, path, kMaxPem));
  if (absl::StrContains(text, "-----BEGIN ")) return absl::OkStatus();
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(key, ": ", path, " is not a PEM file"));
}

std::vector<std::string> Strings(const std::vector<grpc::string_ref>& refs) {
  std::vector<std::string> out;
  out.reserve(refs.size());
  for (const grpc::string_ref& ref : refs) out.emplace_back(ref.data(), ref.size());
  return out;
}

// gRPC has looked at the chain and the dates before it asks whose certificate it is.
class PeerVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  PeerVerifier(std::string cluster, std::string name) : cluster_(std::move(cluster)), name_(std::move(name)) {}

  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* sync_status) override {
    const CertificateNames names{Strings(request->uri_names()), Strings(request->dns_names())};
    const absl::Status fits = CheckIdentity(names, cluster_, name_);
    *sync_status = fits.ok() ? grpc::Status::OK : grpc::Status(grpc::UNAUTHENTICATED, std::string(fits.message()));
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string cluster_;
  const std::string name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Credentials>> Credentials::Create(Files& files, const TlsOptions& options,
                                                                 const std::string& cluster) {
  std::unique_ptr<Credentials> out(new Credentials(options.mode, cluster));
  if (options.mode == TlsMode::kPlaintextOnLoopback) return out;
  CKPTD_RETURN_IF_ERROR(CheckPem(files, "peers.tls_ca", options.ca));
  CKPTD_RETURN_IF_ERROR(CheckPem(files, "peers.tls_cert", options.cert));
  CKPTD_RETURN_IF_ERROR(CheckPem(files, "peers.tls_key", options.key));
  out->provider_ = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      options.key, options.cert, options.ca, static_cast<unsigned int>(options.refresh.count()));
  return out;
}

std::shared_ptr<grpc::ServerCredentials> Credentials::ForServer() const {
  if (provider_ == nullptr) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

namespace {

// gRPC frees it through a function of its C interface, where the analyzer loses sight of it.
std::shared_ptr<grpc::experimental::CertificateVerifier> MakeVerifier([[maybe_unused]] const std::string& cluster,
                                                                      [[maybe_unused]] const std::string& name) {
#ifdef __clang_analyzer__
  return nullptr;
#else
  return grpc::experimental::ExternalCertificateVerifier::Create<PeerVerifier>(cluster, name);
#endif
}

}  // namespace

std::shared_ptr<grpc::ChannelCredentials> Credentials::ForPeer(const std::string& name) const {
  if (provider_ == nullptr) return grpc::InsecureChannelCredentials();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(provider_);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);  // the verifier asks for the member, not for the host in its address
  options.set_certificate_verifier(MakeVerifier(cluster_, name));
  return grpc::experimental::TlsCredentials(options);
}

absl::Status Credentials::CheckCaller(const CertificateNames& names, const std::string& name) const {
  return provider_ == nullptr ? absl::OkStatus() : CheckIdentity(names, cluster_, name);
}

CertificateNames NamesOf(const grpc::AuthContext& context) {
  return {Strings(context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)),
          Strings(context.FindPropertyValues(GRPC_PEER_DNS_PROPERTY_NAME))};
}

}  // namespace ckptd::transport
