// A small authority for those who have none: certificates by which agents of several nodes know each other
// (daemon/transport/identity.h). X.509 as RFC 5280 has it, names as SPIFFE's X.509-SVID; keys are P-256, signatures
// ECDSA with SHA-256.
//
// The authority                          A node
//   subject    CN=ckptd CLUSTER SERIAL     subject   CN=NAME, its first 64 bytes: for people
//   names      URI spiffe://CLUSTER        names     URI spiffe://CLUSTER/ckptd/NAME; DNS NAME where it is one
//   basic      CA, nothing below but       basic     no CA
//              nodes (path length 0)       usage     digital signature; TLS server and TLS client
//   usage      signs certificates, lists
//
// Both begin an hour before they are made, since clocks of nodes differ. A node's never outlives its authority's.
//
// No I/O, no clock: `now` is seconds since 1970. PEM text in, PEM text out. Any thread, an Authority one at a time.
// Errors: INVALID_ARGUMENT of names, times and text that is no PEM; INTERNAL with OpenSSL's reason.
#ifndef CKPTD_TOOLS_CERTS_CERTIFICATES_H_
#define CKPTD_TOOLS_CERTS_CERTIFICATES_H_

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/transport/identity.h"

namespace ckptd::certs {

inline constexpr int64_t kDay = 86'400;
inline constexpr int kMaxDays = 36'500;
inline constexpr int kAuthorityDays = 3'650;
inline constexpr int kNodeDays = 90;
inline constexpr size_t kMaxClusterBytes = 253;   // as of peers.cluster
inline constexpr size_t kMaxFileNameBytes = 251;  // of a node's name: NAME.pem is a file's name

struct KeyPair {
  std::string key;  // PKCS #8, not encrypted
  std::string certificate;
};

// What one certificate says of itself. Nobody has checked who signed it.
struct About {
  transport::CertificateNames names;
  bool authority = false;
  std::string cluster;  // of an authority or a node as above; else empty
  std::string node;     // of a node as above; else empty
  int64_t begin = 0;
  int64_t end = 0;  // the last second
};

class Authority {
 public:
  [[nodiscard]] static absl::StatusOr<KeyPair> Make(const std::string& cluster, int64_t now, int days);
  // Checked: that the certificate may sign, that the key is its key.
  [[nodiscard]] static absl::StatusOr<Authority> Parse(const KeyPair& pair);
  Authority(Authority&& other) noexcept;
  Authority& operator=(Authority&& other) noexcept;
  ~Authority();

  // `cluster` of About; empty where the certificate names none, as those of other tools.
  [[nodiscard]] const About& about() const { return about_; }
  // A new key and its certificate. REFUSED when the authority has not begun or is over.
  [[nodiscard]] absl::StatusOr<KeyPair> Issue(const std::string& cluster, const std::string& node, int64_t now,
                                              int days) const;

 private:
  struct Handles;
  Authority(std::unique_ptr<Handles> handles, About about);

  std::unique_ptr<Handles> handles_;
  About about_;
};

// Of the first certificate in `pem`.
[[nodiscard]] absl::StatusOr<About> Read(const std::string& pem);
// Whether the key is that of the first certificate.
[[nodiscard]] absl::StatusOr<bool> Fits(const KeyPair& pair);

// 1 to 253 of A-Z a-z 0-9 . _ -
[[nodiscard]] absl::Status CheckCluster(absl::string_view cluster);
// membership::CheckName, and that it fits a file's name.
[[nodiscard]] absl::Status CheckNode(absl::string_view node);
// Labels of letters, digits and inner hyphens (RFC 1123); an IPv4 address is none.
[[nodiscard]] bool IsDnsName(absl::string_view name);

}  // namespace ckptd::certs

#endif  // CKPTD_TOOLS_CERTS_CERTIFICATES_H_
