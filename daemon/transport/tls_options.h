// Where the certificates of a node are (credentials.h). Values only; any thread.
#ifndef CKPTD_DAEMON_TRANSPORT_TLS_OPTIONS_H_
#define CKPTD_DAEMON_TRANSPORT_TLS_OPTIONS_H_

#include <chrono>
#include <string>

namespace ckptd::transport {

enum class TlsMode {
  kMutual,
  kPlaintextOnLoopback,  // nobody proves who he is: for agents of one machine, in tests
};

struct TlsOptions {
  TlsMode mode = TlsMode::kMutual;
  std::string ca;    // PEM files; all three for kMutual
  std::string cert;  // this node's, and those that lead to `ca` behind it
  std::string key;
  std::chrono::seconds refresh{10};  // at least 1
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TLS_OPTIONS_H_
