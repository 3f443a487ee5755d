#include "daemon/transport/tls/tls_identity.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/transport/tls/openssl_handles.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMaxPem = 1 << 20;
constexpr int kMaxDepth = 8;  // of a chain
// Bytes of one read, of several records. Not more: OpenSSL moves all of it to the front of its buffer for each record.
constexpr size_t kReadAhead = 64 << 10;
constexpr Nanos kSoon = std::chrono::seconds(1);
constexpr char kCiphers[] = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

absl::Status Wrong(const char* key, const std::string& path, absl::string_view what) {
  const std::string reason = TakeSslError();
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat(key, ": ", path, ": ", what, reason.empty() ? "" : ": ", reason));
}

BioPtr Reading(const std::string& pem) { return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

// A key that wants a password has none here; without this OpenSSL would ask the terminal.
int NoPassword(char*, int, int, void*) { return -1; }

absl::Status SetRules(SSL_CTX* context) {
  bool ok = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1;
  ok = ok && SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1;
  ok = ok && SSL_CTX_set_ciphersuites(context, kCiphers) == 1;
  ok = ok && SSL_CTX_set_num_tickets(context, 0) == 1;
  if (!ok) return Error(ErrorCode::INTERNAL, absl::StrCat("OpenSSL: TLS 1.3 cannot be had: ", TakeSslError()));
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_verify_depth(context, kMaxDepth);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_read_buffer_len(context, kReadAhead);
  return absl::OkStatus();
}

void AddName(const GENERAL_NAME& name, CertificateNames* out) {
  if (name.type != GEN_URI && name.type != GEN_DNS) return;
  const ASN1_IA5STRING* const text = name.type == GEN_URI ? name.d.uniformResourceIdentifier : name.d.dNSName;
  std::string bytes(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                    static_cast<size_t>(ASN1_STRING_length(text)));
  (name.type == GEN_URI ? out->uris : out->dns).push_back(std::move(bytes));
}

}  // namespace

std::string TakeSslError() {
  const unsigned long error = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's
  ERR_clear_error();
  if (error == 0) return "";
  const char* const reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : absl::StrCat("error ", error);
}

// Files that are being exchanged are looked at again soon.
absl::StatusOr<std::shared_ptr<SSL_CTX>> TlsIdentity::Current(Nanos now) {
  if (now >= look_again_) {
    why_not_ = Look();
    if (!why_not_.ok()) context_.reset();
    look_again_ = now + (context_ ? refresh_ : std::min(refresh_, kSoon));
  }
  if (!context_) return why_not_;
  return context_;
}

absl::Status TlsIdentity::Look() {
  CKPTD_ASSIGN_OR_RETURN(Texts texts, Read());
  if (context_ && texts == texts_) return absl::OkStatus();
  CKPTD_ASSIGN_OR_RETURN(context_, Make(texts));
  texts_ = std::move(texts);
  return absl::OkStatus();
}

absl::StatusOr<TlsIdentity::Texts> TlsIdentity::Read() {
  Texts texts;
  CKPTD_ASSIGN_OR_RETURN(texts.ca, ReadOperatorFile(files_, options_.ca, kMaxPem));
  CKPTD_ASSIGN_OR_RETURN(texts.cert, ReadOperatorFile(files_, options_.cert, kMaxPem));
  CKPTD_ASSIGN_OR_RETURN(texts.key, ReadOperatorFile(files_, options_.key, kMaxPem));
  return texts;
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> TlsIdentity::Make(const Texts& texts) const {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_method()), [](SSL_CTX* last) { SSL_CTX_free(last); });
  if (!context) return Error(ErrorCode::INTERNAL, absl::StrCat("OpenSSL: ", TakeSslError()));
  CKPTD_RETURN_IF_ERROR(SetRules(context.get()));
  CKPTD_RETURN_IF_ERROR(UseAuthorities(context.get(), texts.ca));
  CKPTD_RETURN_IF_ERROR(UseCertificate(context.get(), texts.cert));
  CKPTD_RETURN_IF_ERROR(UseKey(context.get(), texts.key));
  ERR_clear_error();
  return context;
}

absl::Status TlsIdentity::UseAuthorities(SSL_CTX* context, const std::string& pem) const {
  const BioPtr text = Reading(pem);
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  int count = 0;
  while (const CertificatePtr one{PEM_read_bio_X509(text.get(), nullptr, NoPassword, nullptr)}) {
    if (X509_STORE_add_cert(store, one.get()) != 1) return Wrong("peers.tls_ca", options_.ca, "a certificate in it");
    ++count;
  }
  if (count == 0) return Wrong("peers.tls_ca", options_.ca, "no certificate in it");
  ERR_clear_error();  // its end
  return absl::OkStatus();
}

// This node's first, then those that lead to the authority.
absl::Status TlsIdentity::UseCertificate(SSL_CTX* context, const std::string& pem) const {
  const BioPtr text = Reading(pem);
  const CertificatePtr own(PEM_read_bio_X509(text.get(), nullptr, NoPassword, nullptr));
  if (!own || SSL_CTX_use_certificate(context, own.get()) != 1)
    return Wrong("peers.tls_cert", options_.cert, "no certificate that can be used");
  while (CertificatePtr next{PEM_read_bio_X509(text.get(), nullptr, NoPassword, nullptr)}) {
    if (SSL_CTX_add1_chain_cert(context, next.get()) != 1)
      return Wrong("peers.tls_cert", options_.cert, "a certificate in it");
  }
  ERR_clear_error();
  return absl::OkStatus();
}

absl::Status TlsIdentity::UseKey(SSL_CTX* context, const std::string& pem) const {
  const BioPtr text = Reading(pem);
  const KeyPtr key(PEM_read_bio_PrivateKey(text.get(), nullptr, NoPassword, nullptr));
  if (!key) return Wrong("peers.tls_key", options_.key, "no key that can be used");
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1)
    return Wrong("peers.tls_key", options_.key, "is not the key of peers.tls_cert");
  return absl::OkStatus();
}

CertificateNames NamesOfPeer(const SSL* ssl) {
  CertificateNames names;
  const X509* const certificate = SSL_get0_peer_certificate(ssl);
  if (certificate == nullptr) return names;
  const GeneralNamesPtr all(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; all && i < sk_GENERAL_NAME_num(all.get()); ++i) AddName(*sk_GENERAL_NAME_value(all.get(), i), &names);
  return names;
}

}  // namespace ckptd::transport
