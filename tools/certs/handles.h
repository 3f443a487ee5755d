// What OpenSSL allocates, owned. Only the sources of this room include it.
#ifndef CKPTD_TOOLS_CERTS_HANDLES_H_
#define CKPTD_TOOLS_CERTS_HANDLES_H_

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

namespace ckptd::certs {

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    (void)kFree(object);
  }
};

using BioPtr = std::unique_ptr<BIO, Freed<BIO_free>>;
using BignumPtr = std::unique_ptr<BIGNUM, Freed<BN_free>>;
using CertificatePtr = std::unique_ptr<X509, Freed<X509_free>>;
using ExtensionPtr = std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>>;
using GeneralNamePtr = std::unique_ptr<GENERAL_NAME, Freed<GENERAL_NAME_free>>;
using GeneralNamesPtr = std::unique_ptr<GENERAL_NAMES, Freed<GENERAL_NAMES_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using TextPtr = std::unique_ptr<ASN1_IA5STRING, Freed<ASN1_IA5STRING_free>>;

}  // namespace ckptd::certs

#endif  // CKPTD_TOOLS_CERTS_HANDLES_H_
