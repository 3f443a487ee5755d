#include "daemon/transport/tls/certificate_ends.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <ctime>
#include <optional>

#include "daemon/base/errors.h"
#include "daemon/transport/tls/openssl_handles.h"

namespace ckptd::transport {

absl::StatusOr<CertificateEnds> EndsOf(const std::string& pem) {
  const BioPtr text(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  std::optional<CertificateEnds> ends;
  while (const CertificatePtr one{PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr)}) {
    std::tm parts{};
    if (ASN1_TIME_to_tm(X509_get0_notAfter(one.get()), &parts) != 1) {
      ERR_clear_error();
      return Error(ErrorCode::INVALID_ARGUMENT, "a certificate whose end cannot be read");
    }
    const auto end = static_cast<int64_t>(timegm(&parts));
    if (!ends) ends = CertificateEnds{end, end};
    ends->first = std::min(ends->first, end);
    ends->last = std::max(ends->last, end);
  }
  ERR_clear_error();  // the end of the text
  if (!ends) return Error(ErrorCode::INVALID_ARGUMENT, "no certificate in it");
  return *ends;
}

}  // namespace ckptd::transport
