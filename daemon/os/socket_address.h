// Numeric addresses of sockets, and sockets of TCP at them. Everything is non-blocking and close-on-exec.
#ifndef CKPTD_DAEMON_OS_SOCKET_ADDRESS_H_
#define CKPTD_DAEMON_OS_SOCKET_ADDRESS_H_

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd {

struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

// INVALID_ARGUMENT for what is no numeric address.
[[nodiscard]] absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& host, uint16_t port);
[[nodiscard]] uint16_t PortOf(const sockaddr_storage& address);
// "10.0.0.7:9466", "[::1]:9466".
[[nodiscard]] std::string TextOf(const sockaddr_storage& address);

inline constexpr uint8_t kMaxDscp = 63;

// What a connection has from its first packet on: `dscp` marks them for the network (RFC 2474), 0 does not; small
// writes are not held back; it ends when the other machine has not answered for about 20 s, whether or not anything is
// to be sent.
[[nodiscard]] absl::Status PrepareTcp(int fd, uint8_t dscp);
// At this address, or at all of this machine's when `host` is empty; port 0 = any free one.
[[nodiscard]] absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, uint16_t port, uint8_t dscp);
[[nodiscard]] absl::StatusOr<uint16_t> LocalPort(int fd);
// Begins to connect: writable when it is connected, or has failed (ConnectError).
[[nodiscard]] absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& to, uint8_t dscp);
[[nodiscard]] absl::Status ConnectError(int fd);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_SOCKET_ADDRESS_H_
