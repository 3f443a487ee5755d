// What OpenSSL allocates, owned. Only the sources of this room include it.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_OPENSSL_HANDLES_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_OPENSSL_HANDLES_H_

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace ckptd::transport {

template <auto kFree>
struct SslFreed {
  template <typename T>
  void operator()(T* object) const {
    (void)kFree(object);
  }
};

using BioPtr = std::unique_ptr<BIO, SslFreed<BIO_free>>;
using BioMethodPtr = std::unique_ptr<BIO_METHOD, SslFreed<BIO_meth_free>>;
using CertificatePtr = std::unique_ptr<X509, SslFreed<X509_free>>;
using ContextPtr = std::shared_ptr<SSL_CTX>;
using GeneralNamesPtr = std::unique_ptr<GENERAL_NAMES, SslFreed<GENERAL_NAMES_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, SslFreed<EVP_PKEY_free>>;
using SslPtr = std::unique_ptr<SSL, SslFreed<SSL_free>>;

// What went wrong last in this thread, as OpenSSL has it; and forgets it.
[[nodiscard]] std::string TakeSslError();

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_OPENSSL_HANDLES_H_
