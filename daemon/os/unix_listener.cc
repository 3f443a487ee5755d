#include "daemon/os/unix_listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/files.h"
#include "daemon/os/pidfd.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; older C libraries do not name it
#endif

namespace ckptd {
namespace {

constexpr int kTrainersBacklog = 128;

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("socket path ", path, ": ", path.size(), " bytes, 1 to ", sizeof(address.sun_path) - 1,
                              " are possible; choose a shorter directory"));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

absl::StatusOr<UniqueFd> NewSocket(bool stream) {
  UniqueFd fd(socket(AF_UNIX, (stream ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "socket", "unix");
  return fd;
}

// A name with nobody behind it (ECONNREFUSED) is what a killed agent leaves; all else stays as it is.
absl::Status RemoveStale(const sockaddr_un& address, bool stream) {
  const char* path = address.sun_path;
  struct stat info {};
  if (lstat(path, &info) != 0) return errno == ENOENT ? absl::OkStatus() : FileError(errno, "stat", path);
  if (!S_ISSOCK(info.st_mode)) return Error(ErrorCode::REFUSED, absl::StrCat(path, ": exists and is not a socket"));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd probe, NewSocket(stream));
  if (connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ||
      errno != ECONNREFUSED) {
    return Error(ErrorCode::REFUSED, absl::StrCat(path, ": another program listens there"));
  }
  return unlink(path) == 0 || errno == ENOENT ? absl::OkStatus() : FileError(errno, "unlink", path);
}

absl::Status Bind(int fd, const sockaddr_un& address, const ListenOptions& options) {
  // The mode is set before the name exists, so that there is no moment in which more people can connect; the umask may
  // have taken bits away, so it is set again afterwards.
  if (fchmod(fd, 0600) != 0) return FileError(errno, "chmod", options.path);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return FileError(errno, "bind", options.path);
  }
  if (options.group && chown(options.path.c_str(), static_cast<uid_t>(-1), *options.group) != 0) {
    return FileError(errno, "chown", options.path);
  }
  if (chmod(options.path.c_str(), options.mode) != 0) return FileError(errno, "chmod", options.path);
  return listen(fd, kTrainersBacklog) == 0 ? absl::OkStatus() : FileError(errno, "listen", options.path);
}

// None where the kernel does not tell them: the process then gets less, never more.
std::vector<gid_t> GroupsOf(int socket) {
  constexpr size_t kUsual = 32;
  std::vector<gid_t> groups(kUsual);
  auto length = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
  int failed = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length);
  if (failed != 0 && errno == ERANGE) {  // `length` is what it takes
    groups.resize(length / sizeof(gid_t));
    failed = getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &length);
  }
  groups.resize(failed == 0 ? length / sizeof(gid_t) : 0);
  return groups;
}

bool PeerHasGone(int error) { return error == ECONNABORTED || error == EPROTO; }

absl::StatusOr<UniqueFd> PeerPidFd(int socket, pid_t pid) {
  int pidfd = -1;
  socklen_t length = sizeof(pidfd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &length) == 0) return UniqueFd(pidfd);
  if (errno == ENOPROTOOPT) return OpenPidFd(pid);
  // Kernels differ in how they say that the peer has ended.
  const bool ended = errno == ESRCH || errno == EINVAL;
  return ErrnoError(ended ? ENOENT : errno, "peer pidfd", absl::StrCat("process ", pid));
}

absl::StatusOr<AcceptedSocket> Identify(UniqueFd fd) {
  CKPTD_ASSIGN_OR_RETURN(PeerCredentials peer, PeerOf(fd.get()));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd pidfd, PeerPidFd(fd.get(), peer.pid));
  return AcceptedSocket{std::move(fd), peer, std::move(pidfd)};
}

}  // namespace

absl::StatusOr<PeerCredentials> PeerOf(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return ErrnoError(errno, "SO_PEERCRED", absl::StrCat("fd ", socket));
  }
  return PeerCredentials{credentials.pid, credentials.uid, credentials.gid, GroupsOf(socket)};
}

absl::StatusOr<UnixListener> UnixListener::Listen(const ListenOptions& options) {
  CKPTD_ASSIGN_OR_RETURN(sockaddr_un address, AddressOf(options.path));
  CKPTD_RETURN_IF_ERROR(RemoveStale(address, options.stream));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(options.stream));
  CKPTD_RETURN_IF_ERROR(Bind(fd.get(), address, options));
  return UnixListener(std::move(fd), options.path);
}

absl::StatusOr<UniqueFd> ConnectUnixStream(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(sockaddr_un address, AddressOf(path));
  CKPTD_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket(/*stream=*/true));
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  switch (errno) {
    case EACCES:
    case EPERM:
      return Error(ErrorCode::PERMISSION, absl::StrCat(path, ": this account may not connect"));
    case EPROTOTYPE:
      return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(path, ": a socket of another kind"));
    case ENOENT:
      return Error(ErrorCode::AGENT_UNREACHABLE, absl::StrCat(path, ": there is no such socket"));
    case ECONNREFUSED:
      return Error(ErrorCode::AGENT_UNREACHABLE, absl::StrCat(path, ": nobody listens there"));
    default:
      return Error(ErrorCode::AGENT_UNREACHABLE, absl::StrCat("connect ", path, ": ", std::strerror(errno)));
  }
}

UnixListener::~UnixListener() {
  if (fd_.valid()) unlink(path_.c_str());
}

absl::StatusOr<std::optional<AcceptedSocket>> UnixListener::Accept() {
  for (;;) {
    UniqueFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid() && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
    if (!fd.valid() && (errno == EINTR || PeerHasGone(errno))) continue;
    if (!fd.valid()) return FileError(errno, "accept", path_);
    absl::StatusOr<AcceptedSocket> accepted = Identify(std::move(fd));
    if (absl::IsNotFound(accepted.status())) continue;  // it ended before it was accepted
    if (!accepted.ok()) return accepted.status();
    return std::optional<AcceptedSocket>(*std::move(accepted));
  }
}

}  // namespace ckptd
