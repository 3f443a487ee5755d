// etcd over gRPC: the one part of this room that speaks it, built only with CKPTD_GRPC (link ckptd::membership_etcd).
//
// Several endpoints are servers of one etcd: calls go to one of them, and to the next after one that did not answer.
// gRPC connects, and connects again after growing pauses, by itself. https: the server's certificate must be right for
// the host in its endpoint, and a client certificate is shown where one is given; http is for a trusted network.
//
// The files of certificates are read again behind a call that failed, and connections made anew where they changed: a
// connection that stands is left alone, so that files may be exchanged before etcd's own or after them.
#ifndef CKPTD_DAEMON_MEMBERSHIP_ETCD_CLIENT_H_
#define CKPTD_DAEMON_MEMBERSHIP_ETCD_CLIENT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"
#include "daemon/membership/etcd.h"
#include "daemon/os/files.h"

namespace ckptd::membership {

inline constexpr size_t kMaxEndpoints = 16;

struct EtcdEndpoint {
  bool tls = false;
  std::string address;  // "HOST:PORT"
};

// "http://HOST:PORT,https://HOST:PORT"; 1 to kMaxEndpoints of them.
[[nodiscard]] absl::StatusOr<std::vector<EtcdEndpoint>> ParseEndpoints(absl::string_view text);

struct EtcdOptions {
  std::string endpoints;
  std::string ca;  // paths of PEM files; empty = the system's authorities
  std::string cert;
  std::string key;
  Nanos timeout{0};  // of a call
};

// PEM files of at most 1 MiB, as they are now; "" gives "".
[[nodiscard]] absl::StatusOr<std::string> ReadPem(Files& files, const std::string& path);

// Connects later, when it is used: only what is wrong with the options, or their files, is an error. `files` outlives
// it; any thread uses them.
[[nodiscard]] absl::StatusOr<std::unique_ptr<Etcd>> ConnectEtcd(Files& files, const EtcdOptions& options);

}  // namespace ckptd::membership

#endif  // CKPTD_DAEMON_MEMBERSHIP_ETCD_CLIENT_H_
