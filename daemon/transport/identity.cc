#include "daemon/transport/identity.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/transport/shown.h"

namespace ckptd::transport {
namespace {

constexpr absl::string_view kScheme = "spiffe://";
constexpr size_t kMostNames = 3;  // that an error repeats

absl::Status NotFor(const std::string& wanted, const std::vector<std::string>& found) {
  std::string names;
  for (size_t i = 0; i < std::min(found.size(), kMostNames); ++i)
    absl::StrAppend(&names, i == 0 ? "" : ", ", Shown(found[i], 300));
  if (found.empty()) names = "nobody";
  return Error(ErrorCode::PERMISSION, absl::StrCat("the certificate is for ", names, ", not for ", wanted,
                                                   ": give each node its own, with the name that the membership has"));
}

}  // namespace

std::string SpiffeId(absl::string_view cluster, absl::string_view name) {
  return absl::StrCat(kScheme, cluster, "/ckptd/", name);
}

absl::Status CheckIdentity(const CertificateNames& names, absl::string_view cluster, absl::string_view name) {
  const std::string wanted = SpiffeId(cluster, Shown(name, 253));
  std::vector<std::string> ids;
  for (const std::string& uri : names.uris) {
    if (absl::StartsWithIgnoreCase(uri, kScheme)) ids.push_back(uri);
  }
  if (ids.size() > 1) return NotFor(absl::StrCat(wanted, " alone"), ids);
  if (ids.size() == 1) return ids[0] == SpiffeId(cluster, name) ? absl::OkStatus() : NotFor(wanted, ids);
  const bool found = !name.empty() && std::find(names.dns.begin(), names.dns.end(), name) != names.dns.end();
  return found ? absl::OkStatus() : NotFor(wanted, names.dns);
}

bool IsLoopbackHost(absl::string_view host) {
  std::array<unsigned char, 16> bytes{};
  const std::string text(host);
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) return text.size() == host.size() && bytes[0] == 127;
  return host == "::1";
}

bool IsLoopbackAddress(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos) return false;
  absl::string_view host = address.substr(0, colon);
  if (host.size() < 2 || host.front() != '[') return !absl::StrContains(host, ':') && IsLoopbackHost(host);
  return host.back() == ']' && host.substr(1, host.size() - 2) == "::1";
}

absl::Status CheckPlaintext(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    if (IsLoopbackAddress(address)) continue;
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("peers.tls is plaintext-on-loopback, and ", Shown(address, 261),
                              " is no address of this machine alone (127.0.0.1:PORT, [::1]:PORT): set peers.tls to "
                              "mutual and give peers.tls_ca, peers.tls_cert and peers.tls_key"));
  }
  return absl::OkStatus();
}

}  // namespace ckptd::transport
