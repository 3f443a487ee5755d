// Questions to DNS servers, by the C library's resolver: search domains, several servers, repeats and TCP for long
// answers are its business, by resolv.conf(5).
#ifndef CKPTD_DAEMON_OS_RESOLVER_H_
#define CKPTD_DAEMON_OS_RESOLVER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ckptd {

class Resolver {
 public:
  enum class Type { kA = 1, kAaaa = 28, kSrv = 33 };  // RFC 1035, 3596, 2782

  // `server`: "IPv4:PORT" in place of those in /etc/resolv.conf, which is read anew for each question; "" = those.
  // Each is asked twice, `patience_seconds` each time.
  [[nodiscard]] static absl::StatusOr<Resolver> Create(absl::string_view server, int patience_seconds = 2);

  // The whole answer as it came, at most 64 KiB; nobody has checked more than that it answers the question. NOT_FOUND
  // when there is no such name or none of this type, TIMEOUT when no server gives an answer. Blocks; any thread.
  [[nodiscard]] absl::StatusOr<std::string> Query(const std::string& name, Type type) const;

 private:
  struct Server {
    uint32_t ip;    // network order
    uint16_t port;  // network order
  };

  Resolver(std::optional<Server> server, int patience_seconds) : server_(server), patience_(patience_seconds) {}

  std::optional<Server> server_;
  int patience_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_RESOLVER_H_
