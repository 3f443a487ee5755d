// Ports of TLS inside this process, with certificates made for them, and both ends of a connection between two.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_TLS_PAIR_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_TLS_PAIR_H_

#include <memory>
#include <string>

#include "daemon/os/testing/temp_dir.h"
#include "daemon/transport/testing/authority.h"
#include "daemon/transport/testing/fake_bulk.h"
#include "daemon/transport/tls/tls_port.h"

namespace ckptd::transport {

// Empty: certificates can be made here. Else why not, to skip a test with.
[[nodiscard]] std::string WhyNoTls();

// An authority, and certificates of nodes of the cluster "ml" that it signed.
class TlsNodes {
 public:
  TlsNodes() : ca_(dir_.path(), "ca") {}
  [[nodiscard]] const Authority& ca() const { return ca_; }
  [[nodiscard]] std::string dir() const { return dir_.path(); }
  void Issue(const std::string& node, int days = 2) const { IssueFor(node, node, days); }
  // In `node`'s files, with another's name.
  void IssueFor(const std::string& node, const std::string& name, int days = 2) const;
  // Of loopback, with certificates that are looked at each time.
  [[nodiscard]] TlsPortOptions OptionsOf(const std::string& node) const;

 private:
  const TempDir dir_;
  const Authority ca_;
};

// Ends the process when there is none.
[[nodiscard]] std::unique_ptr<SocketPort> MustOpenTls(const TlsPortOptions& options);

// Between two ports that live as long as the process.
[[nodiscard]] FakeBulk::Ends ConnectByTls(FakeBulkFaults faults = {});

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_TLS_PAIR_H_
