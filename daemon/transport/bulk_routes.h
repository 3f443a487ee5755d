// Where each peer takes a Move by other ways than gRPC (bulk_port.h), as it said last, and whether a way is worth a
// try: a peer to which no connection could be made, or none that brought anything, is left alone for a while, twice as
// long each time: each try may cost a copy the five seconds in which nobody answers. Pure; one thread.
#ifndef CKPTD_DAEMON_TRANSPORT_BULK_ROUTES_H_
#define CKPTD_DAEMON_TRANSPORT_BULK_ROUTES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "daemon/base/clock.h"
#include "daemon/transport/bulk_way.h"

namespace ckptd::transport {

inline constexpr Nanos kRouteRests = std::chrono::seconds(60);
inline constexpr Nanos kRouteRestsAtMost = std::chrono::minutes(10);

struct BulkRoute {
  std::string host;  // numeric
  uint16_t port = 0;
};

class BulkRoutes {
 public:
  // `from`: whence its answer came, as gRPC writes it: the port is at the same address. Port 0: it has none.
  void Heard(const std::string& peer, absl::string_view from, BulkWay way, uint32_t port);
  [[nodiscard]] std::optional<BulkRoute> Find(const std::string& peer, BulkWay way, Nanos now) const;
  void Failed(const std::string& peer, BulkWay way, Nanos now);
  void ForgetOthers(const std::function<bool(const std::string& name)>& is_peer);

 private:
  using Key = std::pair<std::string, BulkWay>;
  struct Rest {
    Nanos until{0};
    Nanos span{0};
  };

  std::map<Key, BulkRoute> routes_;  // of as many peers as there are members
  std::map<Key, Rest> rests_;
};

// "ipv4:10.0.0.7:9465", "ipv6:[::1]:9465", "ipv6:%5B::1%5D:9465". Empty for anything else, also an address that is of
// one link (fe80::1%eth0): gRPC goes there, the other ways do not.
[[nodiscard]] std::string HostOf(absl::string_view grpc_peer);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_BULK_ROUTES_H_
