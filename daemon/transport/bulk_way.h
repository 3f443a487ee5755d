// The ways that the bytes of a Move can take between two nodes.
#ifndef CKPTD_DAEMON_TRANSPORT_BULK_WAY_H_
#define CKPTD_DAEMON_TRANSPORT_BULK_WAY_H_

#include <cstddef>
#include <cstdint>

namespace ckptd::transport {

// The best guess first. Of those beside gRPC both ends need the same one.
enum class BulkWay : uint8_t { kUcx, kTcp, kTls, kGrpc };
inline constexpr size_t kBulkWays = 4;

[[nodiscard]] constexpr const char* NameOf(BulkWay way) {
  switch (way) {
    case BulkWay::kUcx:
      return "ucx";
    case BulkWay::kTcp:
      return "tcp";
    case BulkWay::kTls:
      return "tls";
    case BulkWay::kGrpc:
      break;
  }
  return "grpc";
}

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_BULK_WAY_H_
