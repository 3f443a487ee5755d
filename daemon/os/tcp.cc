#include "daemon/os/tcp.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd {
namespace {

constexpr int kTcpBacklog = 16;

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

absl::StatusOr<Address> ParseLoopback(absl::string_view text) {
  size_t colon = text.rfind(':');
  absl::string_view host = colon == absl::string_view::npos ? text : text.substr(0, colon);
  uint32_t port = 0;
  bool known = (host == "127.0.0.1" || host == "[::1]") && colon != absl::string_view::npos &&
               absl::SimpleAtoi(text.substr(colon + 1), &port) && port <= 65535;
  if (!known) return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(text, ": expected 127.0.0.1:PORT or [::1]:PORT"));
  Address address;
  if (host == "[::1]") {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(static_cast<uint16_t>(port));
    in6->sin6_addr = in6addr_loopback;
    address.length = sizeof(*in6);
  } else {
    auto* in4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    in4->sin_family = AF_INET;
    in4->sin_port = htons(static_cast<uint16_t>(port));
    in4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.length = sizeof(*in4);
  }
  return address;
}

absl::StatusOr<uint16_t> PortOf(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return ErrnoError(errno, "getsockname", "tcp");
  if (storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port);
}

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

absl::StatusOr<TcpListener> TcpListener::Listen(absl::string_view text) {
  CKPTD_ASSIGN_OR_RETURN(Address address, ParseLoopback(text));
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "socket", text);
  int on = 1;  // a restarted agent takes its port back while old connections linger
  if (setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0)
    return ErrnoError(errno, "setsockopt", text);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0)
    return ErrnoError(errno, "bind", text);
  if (listen(fd.get(), kTcpBacklog) != 0) return ErrnoError(errno, "listen", text);
  CKPTD_ASSIGN_OR_RETURN(uint16_t port, PortOf(fd.get()));
  return TcpListener(std::move(fd), port);
}

absl::StatusOr<std::optional<UniqueFd>> TcpListener::Accept() {
  while (true) {
    UniqueFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) return std::optional<UniqueFd>(std::move(fd));
    if (WouldBlock(errno)) return std::optional<UniqueFd>();
    if (errno != EINTR && errno != ECONNABORTED && errno != EPROTO) return ErrnoError(errno, "accept", "tcp");
  }
}

absl::StatusOr<std::optional<size_t>> ReadStream(int fd, char* buffer, size_t size) {
  while (true) {
    ssize_t got = recv(fd, buffer, size, 0);
    if (got >= 0) return std::optional<size_t>(static_cast<size_t>(got));
    if (WouldBlock(errno)) return std::optional<size_t>();
    if (errno != EINTR) return ErrnoError(errno, "recv", "tcp");
  }
}

absl::StatusOr<size_t> WriteStream(int fd, absl::string_view bytes) {
  while (true) {
    ssize_t taken = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (taken >= 0) return static_cast<size_t>(taken);
    if (WouldBlock(errno)) return size_t{0};
    if (errno != EINTR) return ErrnoError(errno, "send", "tcp");
  }
}

}  // namespace ckptd
