// A listening unix socket, of type SOCK_SEQPACKET or SOCK_STREAM, and who connects to it.
#ifndef CKPTD_DAEMON_OS_UNIX_LISTENER_H_
#define CKPTD_DAEMON_OS_UNIX_LISTENER_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/fd.h"

namespace ckptd {

// As the kernel recorded it at connect(): cannot be forged.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary
};

struct AcceptedSocket {
  UniqueFd fd;  // non-blocking, close-on-exec
  PeerCredentials peer;
  UniqueFd pidfd;  // of the connected process itself, also where its pid was reused since (SO_PEERPIDFD, Linux 6.5);
                   // on older kernels opened by pid
};

struct ListenOptions {
  std::string path;
  uint32_t mode = 0600;
  std::optional<gid_t> group{};  // the socket's group, for mode 0660
  bool stream = false;           // SOCK_STREAM, for gRPC
};

class UnixListener {
 public:
  // A socket left by a dead agent is replaced; REFUSED when a living one answers there. Hold the agent's lock
  // (file_lock.h) while calling: two callers at once could replace each other's socket.
  [[nodiscard]] static absl::StatusOr<UnixListener> Listen(const ListenOptions& options);
  UnixListener(UnixListener&&) noexcept = default;
  UnixListener& operator=(UnixListener&&) = delete;
  ~UnixListener();  // removes the path

  // The next waiting connection, if any; does not wait. A peer that has gone already is skipped.
  [[nodiscard]] absl::StatusOr<std::optional<AcceptedSocket>> Accept();
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  UnixListener(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  UniqueFd fd_;
  std::string path_;
};

[[nodiscard]] absl::StatusOr<PeerCredentials> PeerOf(int socket);

// The other end of a SOCK_STREAM listener: non-blocking, close-on-exec. AGENT_UNREACHABLE when nobody is there,
// PERMISSION, INVALID_ARGUMENT for a socket of another type. Does not wait: a listener whose backlog is full is
// unreachable.
[[nodiscard]] absl::StatusOr<UniqueFd> ConnectUnixStream(const std::string& path);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_UNIX_LISTENER_H_
