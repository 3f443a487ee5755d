// Reaching the agent, and losing it.
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "client/src/failure.h"
#include "client/src/session.h"

namespace ckptd {
namespace {

constexpr uint64_t kFirstBackoffNs = 20'000'000;
constexpr uint64_t kMaxBackoffNs = 2'000'000'000;

// The per-user agent's folder under /tmp can be made by anybody: what answers there must be this user.
bool IsImpostor(const std::string& path, int fd) {
  const std::string own = "/tmp/ckptd-" + std::to_string(geteuid()) + "/";
  if (path.compare(0, own.size(), own) != 0) return false;
  ucred peer = {};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != geteuid();
}

// 0 or an errno. Connecting to a unix socket never waits: a full backlog is EAGAIN.
int ConnectTo(const std::string& path, UniqueFd* out) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) return ENAMETOOLONG;
  memcpy(address.sun_path, path.data(), path.size());
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return errno;
  if (IsImpostor(path, fd.get())) return EPERM;
  *out = std::move(fd);
  return 0;
}

}  // namespace

void Session::Connect() {
  const std::string* refused = nullptr;
  std::string tried;
  for (const std::string& path : state_.sockets) {
    int error = ConnectTo(path, &socket_);
    if (error == EACCES || error == EPERM) refused = &path;
    tried += (tried.empty() ? "" : ", ") + path;
    tried += error == 0 ? " (accepts, but does not answer)" : std::string(" (") + strerror(error) + ")";
    if (error == 0) break;
  }
  TellTried(std::move(tried), refused);
  if (socket_.valid()) {
    connection_ = Connection();
    if (!SendHello()) Disconnect();
    return;
  }
  backoff_ns_ = std::clamp(2 * backoff_ns_, kFirstBackoffNs, kMaxBackoffNs);
  ArmTimer(backoff_ns_);
}

void Session::TellTried(std::string tried, const std::string* refused) {
  MutexLock lock(state_.mutex);
  state_.tried = std::move(tried);
  if (refused == nullptr || socket_.valid()) return;
  state_.connect_code = code::PERMISSION;
  state_.connect_sentence = "no permission to connect to " + *refused + ", or another user listens there";
  state_.changed.NotifyAll();
}

void Session::Disconnect() {
  socket_.Reset();
  connection_ = Connection();
  {
    MutexLock lock(state_.mutex);
    if (state_.connected) state_.reconnects += 1;
    if (state_.connected) LosePatience(state_.claim);
    state_.connected = false;
    state_.changed.NotifyAll();
  }
  backoff_ns_ = std::clamp(2 * backoff_ns_, kFirstBackoffNs, kMaxBackoffNs);
  ArmTimer(backoff_ns_);
}

void Session::ArmTimer(uint64_t delay_ns) {
  itimerspec when = {};
  when.it_value.tv_sec = static_cast<time_t>(delay_ns / 1'000'000'000);
  when.it_value.tv_nsec = static_cast<long>(delay_ns % 1'000'000'000);
  timerfd_settime(timer_.get(), 0, &when, nullptr);
}

}  // namespace ckptd
