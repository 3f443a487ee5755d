// Listening on loopback TCP, for the status page. Everything is non-blocking; watch the descriptors with loop.h.
#ifndef CKPTD_DAEMON_OS_TCP_H_
#define CKPTD_DAEMON_OS_TCP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/os/fd.h"

namespace ckptd {

class TcpListener {
 public:
  // "127.0.0.1:PORT" or "[::1]:PORT"; port 0 = any free one. Other hosts are INVALID_ARGUMENT.
  [[nodiscard]] static absl::StatusOr<TcpListener> Listen(absl::string_view address);

  // The next waiting connection, if any. A peer that has gone already is skipped. An error (no descriptors left) leaves
  // the connection waiting: pause before the next call.
  [[nodiscard]] absl::StatusOr<std::optional<UniqueFd>> Accept();
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] uint16_t port() const { return port_; }

 private:
  TcpListener(UniqueFd fd, uint16_t port) : fd_(std::move(fd)), port_(port) {}
  UniqueFd fd_;
  uint16_t port_;
};

// Bytes read into `buffer`; 0 = the peer sends no more; nullopt = nothing has come yet.
[[nodiscard]] absl::StatusOr<std::optional<size_t>> ReadStream(int fd, char* buffer, size_t size);

// Bytes taken, 0 = the socket is full now. Never raises SIGPIPE.
[[nodiscard]] absl::StatusOr<size_t> WriteStream(int fd, absl::string_view bytes);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_TCP_H_
