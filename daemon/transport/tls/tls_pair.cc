#include "daemon/transport/tls/tls_pair.h"

#include <openssl/crypto.h>

#include <cstdlib>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/os/posix_files.h"
#include "daemon/transport/testing/port_pair.h"

namespace ckptd::transport {
namespace {

constexpr char kCluster[] = "ml";

}  // namespace

std::string WhyNoTls() { return HaveOpenssl() ? "" : absl::StrCat("no ", kOpenssl, " (package openssl)"); }

void TlsNodes::IssueFor(const std::string& node, const std::string& name, int days) const {
  ca_.Issue(node, absl::StrCat("URI:", SpiffeId(kCluster, name)), days);
}

TlsPortOptions TlsNodes::OptionsOf(const std::string& node) const {
  TlsPortOptions options;
  options.host = "127.0.0.1";
  options.cluster = kCluster;
  options.tls = ca_.Tls(node);
  options.refresh = Nanos(0);
  return options;
}

std::unique_ptr<SocketPort> MustOpenTls(const TlsPortOptions& options) {
  absl::StatusOr<std::unique_ptr<SocketPort>> port = OpenTlsPort(PosixFiles(), options);
  if (port.ok()) return *std::move(port);
  std::cerr << port.status() << "\n";
  std::abort();
}

FakeBulk::Ends ConnectByTls(FakeBulkFaults faults) {
  // OpenSSL tidies up at exit what it has: after the ports are gone, if it begins before them.
  static const bool openssl = OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CRYPTO_STRINGS, nullptr) == 1;
  if (!openssl) std::abort();
  static const auto nodes = [] {
    auto made = std::make_unique<TlsNodes>();
    for (const char* node : {"a", "b"}) made->Issue(node);
    return made;
  }();
  static const std::unique_ptr<SocketPort> dials = MustOpenTls(nodes->OptionsOf("a"));
  static const std::unique_ptr<SocketPort> serves = MustOpenTls(nodes->OptionsOf("b"));
  return ConnectPorts(*dials, *serves, "b", std::move(faults));
}

}  // namespace ckptd::transport
