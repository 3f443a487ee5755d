// The files of an authority and of its nodes.
//
//   DIR/ca.key     0600, never leaves this machine     OUT/NAME.key   0600
//   DIR/ca.pem     0644                                OUT/NAME.pem   0644
//
// Each is written under a temporary name, synced and renamed, the key before its certificate: whoever reads meanwhile
// finds whole files, and what a crash leaves between the two is a key that does not fit (NodeFiles::fits), made anew by
// the next rotation. One thread. Errors carry the path.
#ifndef CKPTD_TOOLS_CERTS_CERT_FILES_H_
#define CKPTD_TOOLS_CERTS_CERT_FILES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/files.h"
#include "tools/certs/certificates.h"

namespace ckptd::certs {

inline constexpr char kCa[] = "ca";  // the authority's files: ca.key, ca.pem

// Of `name` in `dir`.
[[nodiscard]] std::string KeyPath(const std::string& dir, const std::string& name);
[[nodiscard]] std::string CertificatePath(const std::string& dir, const std::string& name);

// Makes `dir` (0700; what is above it is there) and a new authority in it. REFUSED where one is, or a part of one.
[[nodiscard]] absl::Status MakeAuthority(Files& files, const std::string& dir, const KeyPair& pair);
// NOT_FOUND where there is none, REFUSED where others than its owner may read the key.
[[nodiscard]] absl::StatusOr<Authority> LoadAuthority(Files& files, const std::string& dir);

// REFUSED where NAME.key or NAME.pem is in `dir`, whosever it is.
[[nodiscard]] absl::Status CheckNone(Files& files, const std::string& dir, const std::string& node);
// Makes `dir` (0700; what is above it is there) and the node's files in it, over those that are there.
[[nodiscard]] absl::Status WriteNode(Files& files, const std::string& dir, const std::string& node,
                                     const KeyPair& pair);

struct NodeFiles {
  About about;
  bool has_key = false;  // beside the certificate: NAME.key of NAME.pem
  bool fits = false;     // the key is the certificate's
};
// The certificate in this file, of a node or of an authority, and the key beside it where this user may read it. Both
// may be symbolic links.
[[nodiscard]] absl::StatusOr<NodeFiles> ReadCertificate(Files& files, const std::string& path);
// The same of OUT/NAME.pem, which may be replaced: it is no link. REFUSED when it is not the certificate of the node
// NAME.
[[nodiscard]] absl::StatusOr<NodeFiles> ReadNode(Files& files, const std::string& dir, const std::string& node);
// NAME of each NAME.pem in `dir` but ca.pem, sorted. NOT_FOUND where `dir` is missing.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> NodesIn(Files& files, const std::string& dir);

}  // namespace ckptd::certs

#endif  // CKPTD_TOOLS_CERTS_CERT_FILES_H_
