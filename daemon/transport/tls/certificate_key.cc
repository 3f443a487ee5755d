#include "daemon/transport/tls/certificate_key.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/transport/tls/openssl_handles.h"

namespace ckptd::transport {
namespace {

// Instead of a question on the terminal.
int WithoutPassword(char*, int, int, void*) { return -1; }

absl::Status NothingUsable(absl::string_view what) {
  const std::string reason = TakeSslError();
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(what, reason.empty() ? "" : ": ", reason));
}

}  // namespace

absl::StatusOr<bool> IsKeyOf(const std::string& certificate, const std::string& key) {
  ERR_clear_error();
  const BioPtr certificates(BIO_new_mem_buf(certificate.data(), static_cast<int>(certificate.size())));
  const CertificatePtr first(PEM_read_bio_X509(certificates.get(), nullptr, WithoutPassword, nullptr));
  if (!first) return NothingUsable("no certificate that can be used");
  const BioPtr keys(BIO_new_mem_buf(key.data(), static_cast<int>(key.size())));
  const KeyPtr found(PEM_read_bio_PrivateKey(keys.get(), nullptr, WithoutPassword, nullptr));
  if (!found) return NothingUsable("no key that can be used");
  const bool fits = X509_check_private_key(first.get(), found.get()) == 1;
  ERR_clear_error();
  return fits;
}

}  // namespace ckptd::transport
