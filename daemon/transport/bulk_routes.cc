#include "daemon/transport/bulk_routes.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace ckptd::transport {

std::string HostOf(absl::string_view grpc_peer) {
  const bool six = absl::ConsumePrefix(&grpc_peer, "ipv6:");
  if (!six && !absl::ConsumePrefix(&grpc_peer, "ipv4:")) return "";
  const size_t colon = grpc_peer.rfind(':');
  if (colon == absl::string_view::npos) return "";
  absl::string_view host = grpc_peer.substr(0, colon);
  if (!six) return std::string(host);
  if (!absl::ConsumePrefix(&host, "[") && !absl::ConsumePrefix(&host, "%5B")) return "";
  if (!absl::ConsumeSuffix(&host, "]") && !absl::ConsumeSuffix(&host, "%5D")) return "";
  if (absl::StrContains(host, '%')) return "";
  return std::string(host);
}

void BulkRoutes::Heard(const std::string& peer, absl::string_view from, BulkWay way, uint32_t port) {
  const std::string host = HostOf(from);
  if (host.empty() || port == 0 || port > UINT16_MAX)
    routes_.erase({peer, way});
  else
    routes_[{peer, way}] = {host, static_cast<uint16_t>(port)};
}

// Several connections may fail of one fault. One that failed long ago tells nothing of this one.
void BulkRoutes::Failed(const std::string& peer, BulkWay way, Nanos now) {
  Rest& rest = rests_[{peer, way}];
  if (now < rest.until) return;
  const bool again = rest.span != Nanos(0) && now < rest.until + kRouteRestsAtMost;
  rest.span = again ? std::min(2 * rest.span, kRouteRestsAtMost) : kRouteRests;
  rest.until = now + rest.span;
}

void BulkRoutes::ForgetOthers(const std::function<bool(const std::string& name)>& is_peer) {
  const auto is_other = [&](const auto& entry) { return !is_peer(entry.first.first); };
  std::erase_if(routes_, is_other);
  std::erase_if(rests_, is_other);
}

std::optional<BulkRoute> BulkRoutes::Find(const std::string& peer, BulkWay way, Nanos now) const {
  const auto rests = rests_.find({peer, way});
  if (rests != rests_.end() && now < rests->second.until) return std::nullopt;
  const auto route = routes_.find({peer, way});
  return route == routes_.end() ? std::nullopt : std::optional<BulkRoute>(route->second);
}

}  // namespace ckptd::transport
