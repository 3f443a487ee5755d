#include "daemon/os/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int kBacklog = 256;
// Of a machine that is gone.
constexpr int kIdleSeconds = 10;
constexpr int kProbeSeconds = 5;
constexpr int kProbes = 2;
constexpr int kUnheardMs = 20'000;

absl::Status SetOption(int fd, int level, int name, int value, const char* what) {
  if (setsockopt(fd, level, name, &value, sizeof value) == 0) return absl::OkStatus();
  return ErrnoError(errno, "setsockopt", what);
}

absl::StatusOr<UniqueFd> MakeSocket(const SocketAddress& address, uint8_t dscp) {
  UniqueFd fd(socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "socket", TextOf(address.bytes));
  CKPTD_RETURN_IF_ERROR(PrepareTcp(fd.get(), dscp));
  return fd;
}

absl::StatusOr<UniqueFd> ListenAt(const SocketAddress& address, uint8_t dscp, bool both_families) {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket(address, dscp));
  CKPTD_RETURN_IF_ERROR(SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR"));
  if (both_families) CKPTD_RETURN_IF_ERROR(SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0, "IPV6_V6ONLY"));
  if (bind(fd.get(), address.get(), address.size) != 0) return ErrnoError(errno, "bind", TextOf(address.bytes));
  if (listen(fd.get(), kBacklog) != 0) return ErrnoError(errno, "listen", TextOf(address.bytes));
  return fd;
}

}  // namespace

absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& host, uint16_t port) {
  SocketAddress address;
  auto* const four = reinterpret_cast<sockaddr_in*>(&address.bytes);
  auto* const six = reinterpret_cast<sockaddr_in6*>(&address.bytes);
  if (inet_pton(AF_INET, host.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    address.size = sizeof(sockaddr_in);
    return address;
  }
  if (inet_pton(AF_INET6, host.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    address.size = sizeof(sockaddr_in6);
    return address;
  }
  return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("\"", host, "\" is no numeric address"));
}

uint16_t PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string TextOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  if (address.ss_family == AF_INET6) {
    (void)inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&address)->sin6_addr, text, sizeof text);
    return absl::StrCat("[", text, "]:", PortOf(address));
  }
  (void)inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&address)->sin_addr, text, sizeof text);
  return absl::StrCat(text, ":", PortOf(address));
}

// A socket of IPv6 may carry IPv4, which has a mark of its own.
absl::Status PrepareTcp(int fd, uint8_t dscp) {
  CKPTD_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY"));
  CKPTD_RETURN_IF_ERROR(SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE"));
  CKPTD_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds, "TCP_KEEPIDLE"));
  CKPTD_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds, "TCP_KEEPINTVL"));
  CKPTD_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes, "TCP_KEEPCNT"));
  CKPTD_RETURN_IF_ERROR(SetOption(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnheardMs, "TCP_USER_TIMEOUT"));
  if (dscp == 0) return absl::OkStatus();
  const int mark = dscp << 2;  // above the two bits of ECN
  int family = 0;
  socklen_t size = sizeof family;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) != 0) return ErrnoError(errno, "getsockopt", "SO_DOMAIN");
  if (family == AF_INET6) CKPTD_RETURN_IF_ERROR(SetOption(fd, IPPROTO_IPV6, IPV6_TCLASS, mark, "IPV6_TCLASS"));
  return SetOption(fd, IPPROTO_IP, IP_TOS, mark, "IP_TOS");
}

absl::StatusOr<UniqueFd> ListenTcp(const std::string& host, uint16_t port, uint8_t dscp) {
  CKPTD_ASSIGN_OR_RETURN(const SocketAddress address, ParseSocketAddress(host.empty() ? "::" : host, port));
  absl::StatusOr<UniqueFd> fd = ListenAt(address, dscp, host.empty());
  if (fd.ok() || !host.empty()) return fd;
  CKPTD_ASSIGN_OR_RETURN(const SocketAddress four, ParseSocketAddress("0.0.0.0", port));  // a machine without IPv6
  absl::StatusOr<UniqueFd> other = ListenAt(four, dscp, false);
  return other.ok() ? std::move(other) : std::move(fd);
}

absl::StatusOr<uint16_t> LocalPort(int fd) {
  SocketAddress address;
  address.size = sizeof address.bytes;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.bytes), &address.size) != 0)
    return ErrnoError(errno, "getsockname", "tcp");
  return PortOf(address.bytes);
}

absl::StatusOr<UniqueFd> StartConnect(const SocketAddress& to, uint8_t dscp) {
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, MakeSocket(to, dscp));
  const int begun = connect(fd.get(), to.get(), to.size);
  if (begun == 0 || errno == EINPROGRESS || errno == EINTR) return fd;
  return ErrnoError(errno, "connect", TextOf(to.bytes));
}

absl::Status ConnectError(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  return error == 0 ? absl::OkStatus() : ErrnoError(error, "connect", "tcp");
}

}  // namespace ckptd
