#include "tools/certs/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/membership/member.h"
#include "tools/certs/handles.h"

namespace ckptd::certs {
namespace {

constexpr int kSerialBits = 159;          // RFC 5280: positive, at most 20 bytes
constexpr size_t kMaxCommonName = 64;     // RFC 5280, ub-common-name
constexpr int64_t kClocksDiffer = 3'600;  // seconds
constexpr absl::string_view kScheme = "spiffe://";
constexpr absl::string_view kService = "/ckptd/";

absl::Status Invalid(absl::string_view text) { return Error(ErrorCode::INVALID_ARGUMENT, text); }

// With the first reason that OpenSSL has; the others are forgotten.
absl::Status Failed(absl::string_view what, ErrorCode code = ErrorCode::INTERNAL) {
  const char* reason = ERR_reason_error_string(ERR_get_error());
  ERR_clear_error();
  return Error(code, absl::StrCat("cannot ", what, ": ", reason == nullptr ? "OpenSSL gives no reason" : reason));
}

absl::Status Done(bool succeeded, absl::string_view what) { return succeeded ? absl::OkStatus() : Failed(what); }

BioPtr Reader(const std::string& text) { return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const auto bytes = BIO_get_mem_data(bio, &data);
  return bytes > 0 ? std::string(data, static_cast<size_t>(bytes)) : std::string();
}

// Instead of a question on the terminal.
int NoPassword(char*, int, int, void*) { return 0; }

absl::StatusOr<CertificatePtr> ParseCertificate(const std::string& pem) {
  const BioPtr bio = Reader(pem);
  CertificatePtr certificate(PEM_read_bio_X509(bio.get(), nullptr, &NoPassword, nullptr));
  if (certificate == nullptr) return Failed("read a certificate from the PEM text", ErrorCode::INVALID_ARGUMENT);
  return certificate;
}

absl::StatusOr<KeyPtr> ParseKey(const std::string& pem) {
  const BioPtr bio = Reader(pem);
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr));
  if (key == nullptr) return Failed("read a key without a password from the PEM text", ErrorCode::INVALID_ARGUMENT);
  return key;
}

absl::StatusOr<KeyPair> ToPem(X509* certificate, EVP_PKEY* key) {
  const BioPtr keys(BIO_new(BIO_s_mem()));
  const BioPtr certificates(BIO_new(BIO_s_mem()));
  CKPTD_RETURN_IF_ERROR(
      Done(PEM_write_bio_PrivateKey(keys.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1, "write the key"));
  CKPTD_RETURN_IF_ERROR(Done(PEM_write_bio_X509(certificates.get(), certificate) == 1, "write the certificate"));
  return KeyPair{TextOf(keys.get()), TextOf(certificates.get())};
}

absl::StatusOr<std::string> SetSerial(X509* certificate) {
  const BignumPtr number(BN_new());
  const bool made = number != nullptr && BN_rand(number.get(), kSerialBits, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1;
  if (!made || BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) == nullptr)
    return Failed("make a serial number");
  std::string digits(40, '0');
  char* text = BN_bn2hex(number.get());
  if (text != nullptr) digits = text;
  OPENSSL_free(text);
  return absl::AsciiStrToLower(digits.substr(0, 8));
}

absl::Status SetTimes(X509* certificate, int64_t begin, int64_t end) {
  const bool set = ASN1_TIME_set(X509_getm_notBefore(certificate), static_cast<time_t>(begin)) != nullptr &&
                   ASN1_TIME_set(X509_getm_notAfter(certificate), static_cast<time_t>(end)) != nullptr;
  return Done(set, "set the times of a certificate");
}

absl::Status SetSubject(X509* certificate, const std::string& common_name) {
  const std::string text = common_name.substr(0, kMaxCommonName);
  const bool set = X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                              reinterpret_cast<const unsigned char*>(text.data()),
                                              static_cast<int>(text.size()), -1, 0) == 1;
  return Done(set, "set the subject of a certificate");
}

// `value` is a constant: its grammar (x509v3_config(5)) has commas and colons.
absl::Status AddExtension(X509* certificate, X509* issuer, int nid, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value));
  const bool added = extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
  return Done(added, absl::StrCat("add the extension ", OBJ_nid2sn(nid)));
}

absl::Status AddName(GENERAL_NAMES* names, int type, const std::string& text) {
  TextPtr value(ASN1_IA5STRING_new());
  GeneralNamePtr name(GENERAL_NAME_new());
  if (value == nullptr || name == nullptr ||
      ASN1_STRING_set(value.get(), text.data(), static_cast<int>(text.size())) != 1)
    return Failed("make a name");
  GENERAL_NAME_set0_value(name.get(), type, value.release());
  if (sk_GENERAL_NAME_push(names, name.get()) <= 0) return Failed("add a name");
  (void)name.release();  // now of the list
  return absl::OkStatus();
}

absl::Status AddNames(X509* certificate, const transport::CertificateNames& wanted) {
  const GeneralNamesPtr names(GENERAL_NAMES_new());
  if (names == nullptr) return Failed("make names");
  for (const std::string& uri : wanted.uris) CKPTD_RETURN_IF_ERROR(AddName(names.get(), GEN_URI, uri));
  for (const std::string& dns : wanted.dns) CKPTD_RETURN_IF_ERROR(AddName(names.get(), GEN_DNS, dns));
  return Done(X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) == 1,
              "add the names");
}

absl::Status Sign(X509* certificate, X509* issuer, EVP_PKEY* key) {
  CKPTD_RETURN_IF_ERROR(AddExtension(certificate, issuer, NID_subject_key_identifier, "hash"));
  if (issuer != certificate)
    CKPTD_RETURN_IF_ERROR(AddExtension(certificate, issuer, NID_authority_key_identifier, "keyid"));
  return Done(X509_sign(certificate, key, EVP_sha256()) > 0, "sign the certificate");
}

struct Fresh {
  KeyPtr key;
  CertificatePtr certificate;
  std::string serial;  // its first 8 digits
};

absl::StatusOr<Fresh> NewCertificate(int64_t begin, int64_t end) {
  Fresh fresh{KeyPtr(EVP_EC_gen("P-256")), CertificatePtr(X509_new()), ""};
  if (fresh.key == nullptr || fresh.certificate == nullptr) return Failed("make a key");
  X509* certificate = fresh.certificate.get();
  CKPTD_RETURN_IF_ERROR(Done(X509_set_version(certificate, X509_VERSION_3) == 1, "make a certificate"));
  CKPTD_ASSIGN_OR_RETURN(fresh.serial, SetSerial(certificate));
  CKPTD_RETURN_IF_ERROR(SetTimes(certificate, begin, end));
  CKPTD_RETURN_IF_ERROR(Done(X509_set_pubkey(certificate, fresh.key.get()) == 1, "set the key of a certificate"));
  return fresh;
}

absl::StatusOr<int64_t> SecondsOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return Failed("read the times of a certificate", ErrorCode::INVALID_ARGUMENT);
  return static_cast<int64_t>(timegm(&parts));
}

transport::CertificateNames NamesOf(X509* certificate) {
  transport::CertificateNames out;
  const GeneralNamesPtr names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    int type = 0;
    const void* value = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names.get(), i), &type);
    if (type != GEN_URI && type != GEN_DNS) continue;
    const auto* text = static_cast<const ASN1_STRING*>(value);
    (type == GEN_URI ? out.uris : out.dns)
        .emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      static_cast<size_t>(ASN1_STRING_length(text)));
  }
  return out;
}

// CLUSTER and NODE, where there is exactly one spiffe URI and it is one of ours.
void FindIdentity(About* about) {
  std::vector<absl::string_view> ids;
  for (const std::string& uri : about->names.uris) {
    if (absl::StartsWithIgnoreCase(uri, kScheme)) ids.emplace_back(uri);
  }
  if (ids.size() != 1 || !absl::ConsumePrefix(ids.data(), kScheme)) return;
  const size_t slash = ids[0].find(kService);
  const absl::string_view cluster = ids[0].substr(0, slash);
  if (!CheckCluster(cluster).ok() || about->authority != (slash == absl::string_view::npos)) return;
  const absl::string_view node = about->authority ? "" : ids[0].substr(slash + kService.size());
  if (!about->authority && !membership::CheckName(node).ok()) return;
  about->cluster = std::string(cluster);
  about->node = std::string(node);
}

absl::StatusOr<About> Describe(X509* certificate) {
  About about;
  about.names = NamesOf(certificate);
  about.authority = X509_check_ca(certificate) == 1;
  ERR_clear_error();
  CKPTD_ASSIGN_OR_RETURN(about.begin, SecondsOf(X509_get0_notBefore(certificate)));
  CKPTD_ASSIGN_OR_RETURN(about.end, SecondsOf(X509_get0_notAfter(certificate)));
  FindIdentity(&about);
  return about;
}

bool IsKeyOf(X509* certificate, EVP_PKEY* key) {
  const bool fits = X509_check_private_key(certificate, key) == 1;
  ERR_clear_error();
  return fits;
}

absl::Status CheckDays(int days) {
  if (days >= 1 && days <= kMaxDays) return absl::OkStatus();
  return Invalid(absl::StrCat("a certificate lasts 1 to ", kMaxDays, " days, not ", days));
}

bool IsDnsLabel(absl::string_view label) {
  const bool plain = std::all_of(label.begin(), label.end(), [](char c) { return absl::ascii_isalnum(c) || c == '-'; });
  return plain && !label.empty() && label.size() <= 63 && label.front() != '-' && label.back() != '-';
}

}  // namespace

struct Authority::Handles {
  CertificatePtr certificate;
  KeyPtr key;
};

Authority::Authority(std::unique_ptr<Handles> handles, About about)
    : handles_(std::move(handles)), about_(std::move(about)) {}
Authority::Authority(Authority&& other) noexcept = default;
Authority& Authority::operator=(Authority&& other) noexcept = default;
Authority::~Authority() = default;

absl::StatusOr<KeyPair> Authority::Make(const std::string& cluster, int64_t now, int days) {
  CKPTD_RETURN_IF_ERROR(CheckCluster(cluster));
  CKPTD_RETURN_IF_ERROR(CheckDays(days));
  CKPTD_ASSIGN_OR_RETURN(const Fresh fresh, NewCertificate(now - kClocksDiffer, now + days * kDay));
  X509* self = fresh.certificate.get();
  // The cluster is cut before the number: authorities of one cluster must not have one subject.
  CKPTD_RETURN_IF_ERROR(SetSubject(self, absl::StrCat("ckptd ", cluster.substr(0, 48), " ", fresh.serial)));
  CKPTD_RETURN_IF_ERROR(
      Done(X509_set_issuer_name(self, X509_get_subject_name(self)) == 1, "set the issuer of a certificate"));
  CKPTD_RETURN_IF_ERROR(AddExtension(self, self, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  CKPTD_RETURN_IF_ERROR(AddExtension(self, self, NID_key_usage, "critical,keyCertSign,cRLSign"));
  CKPTD_RETURN_IF_ERROR(AddNames(self, {{absl::StrCat(kScheme, cluster)}, {}}));
  CKPTD_RETURN_IF_ERROR(Sign(self, self, fresh.key.get()));
  return ToPem(self, fresh.key.get());
}

absl::StatusOr<Authority> Authority::Parse(const KeyPair& pair) {
  auto handles = std::make_unique<Handles>();
  CKPTD_ASSIGN_OR_RETURN(handles->certificate, ParseCertificate(pair.certificate));
  CKPTD_ASSIGN_OR_RETURN(handles->key, ParseKey(pair.key));
  CKPTD_ASSIGN_OR_RETURN(About about, Describe(handles->certificate.get()));
  if (!about.authority) return Invalid("the certificate is no authority's: it may not sign others");
  if (!IsKeyOf(handles->certificate.get(), handles->key.get())) return Invalid("the key is not the certificate's");
  return Authority(std::move(handles), std::move(about));
}

absl::StatusOr<KeyPair> Authority::Issue(const std::string& cluster, const std::string& node, int64_t now,
                                         int days) const {
  CKPTD_RETURN_IF_ERROR(CheckCluster(cluster));
  CKPTD_RETURN_IF_ERROR(CheckNode(node));
  CKPTD_RETURN_IF_ERROR(CheckDays(days));
  if (now < about_.begin || now >= about_.end)
    return Error(ErrorCode::REFUSED,
                 "the authority's certificate has not begun or is over: make a new authority "
                 "(ckptctl certs init --dir OTHER) and let ca.pem of the nodes hold both for a while");
  CKPTD_ASSIGN_OR_RETURN(const Fresh fresh, NewCertificate(std::max(about_.begin, now - kClocksDiffer),
                                                           std::min(about_.end, now + days * kDay)));
  X509* made = fresh.certificate.get();
  X509* issuer = handles_->certificate.get();
  CKPTD_RETURN_IF_ERROR(SetSubject(made, node));
  CKPTD_RETURN_IF_ERROR(
      Done(X509_set_issuer_name(made, X509_get_subject_name(issuer)) == 1, "set the issuer of a certificate"));
  CKPTD_RETURN_IF_ERROR(AddExtension(made, issuer, NID_basic_constraints, "critical,CA:FALSE"));
  CKPTD_RETURN_IF_ERROR(AddExtension(made, issuer, NID_key_usage, "critical,digitalSignature"));
  CKPTD_RETURN_IF_ERROR(AddExtension(made, issuer, NID_ext_key_usage, "serverAuth,clientAuth"));
  transport::CertificateNames names{{transport::SpiffeId(cluster, node)}, {}};
  if (IsDnsName(node)) names.dns.push_back(node);
  CKPTD_RETURN_IF_ERROR(AddNames(made, names));
  CKPTD_RETURN_IF_ERROR(Sign(made, issuer, handles_->key.get()));
  return ToPem(made, fresh.key.get());
}

absl::StatusOr<About> Read(const std::string& pem) {
  CKPTD_ASSIGN_OR_RETURN(const CertificatePtr certificate, ParseCertificate(pem));
  return Describe(certificate.get());
}

absl::StatusOr<bool> Fits(const KeyPair& pair) {
  CKPTD_ASSIGN_OR_RETURN(const CertificatePtr certificate, ParseCertificate(pair.certificate));
  CKPTD_ASSIGN_OR_RETURN(const KeyPtr key, ParseKey(pair.key));
  return IsKeyOf(certificate.get(), key.get());
}

absl::Status CheckCluster(absl::string_view cluster) {
  const bool plain = std::all_of(cluster.begin(), cluster.end(),
                                 [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-'; });
  if (plain && !cluster.empty() && cluster.size() <= kMaxClusterBytes) return absl::OkStatus();
  return Invalid(absl::StrCat("cluster \"", membership::Shown(cluster), "\": expected 1 to ", kMaxClusterBytes,
                              " of A-Z a-z 0-9 . _ -"));
}

absl::Status CheckNode(absl::string_view node) {
  CKPTD_RETURN_IF_ERROR(membership::CheckName(node));
  if (node.size() <= kMaxFileNameBytes) return absl::OkStatus();
  return Invalid(absl::StrCat("node name \"", membership::Shown(node), "\": more than ", kMaxFileNameBytes,
                              " bytes do not fit a file's name"));
}

bool IsDnsName(absl::string_view name) {
  const std::vector<absl::string_view> labels = absl::StrSplit(name, '.');
  const bool number = std::all_of(labels.back().begin(), labels.back().end(), absl::ascii_isdigit);
  return name.size() <= 253 && !number && std::all_of(labels.begin(), labels.end(), &IsDnsLabel);
}

}  // namespace ckptd::certs
