// Reaching the agent, and losing it.
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

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

// An agent runs here, or did: systemd keeps the folder while it starts the next.
bool MayComeBack(const std::string& path, int error) {
  if (error == ECONNREFUSED || error == EAGAIN) return true;
  return error == ENOENT && access(path.substr(0, path.rfind('/')).c_str(), F_OK) == 0;
}

}  // namespace

void Session::Connect() {
  TryPaths();
  if (socket_.valid()) {
    connection_ = Connection();
    if (!SendHello()) Disconnect();
    return;
  }
  backoff_ns_ = std::clamp(2 * backoff_ns_, kFirstBackoffNs, kMaxBackoffNs);
  retry_ns_ = DeadlineAfter(backoff_ns_);
}

// Which of two agents answers must not depend on the moment: only the one that was joined knows this job's steps.
void Session::TryPaths() {
  bool stays = false;
  bool waits = false;
  {
    MutexLock lock(state_.mutex);
    stays = IsAnswered(state_.claim);
    waits = MonotonicNs() < MovesAt();
  }
  const std::string* refused = nullptr;
  std::string tried;
  bool holds_back = false;
  const size_t end = stays ? path_ + 1 : state_.sockets.size();
  for (size_t i = stays ? path_ : 0; i < end && !socket_.valid() && !holds_back; ++i) {
    const std::string& path = state_.sockets[i];
    int error = ConnectTo(path, &socket_);
    if (error == 0) path_ = i;
    if (error == EACCES || error == EPERM) refused = &path;
    tried += (tried.empty() ? "" : ", ") + path;
    tried += error == 0 ? " (accepts, but does not answer)" : std::string(" (") + strerror(error) + ")";
    holds_back = error != 0 && waits && i + 1 < end && MayComeBack(path, error);
  }
  TellTried(std::move(tried), refused, holds_back);
}

// When an agent that was away so long is given up for another. With the mutex held.
uint64_t Session::MovesAt() const {
  const uint64_t from = std::max(state_.claim.since_ns, away_ns_);
  return state_.claim.move_ns > UINT64_MAX - from ? UINT64_MAX : from + state_.claim.move_ns;
}

// Before each sleep: a restore that was begun meanwhile may give an agent up sooner than the backoff ends.
void Session::AwaitRetry() {
  if (socket_.valid()) return;
  const uint64_t now = MonotonicNs();
  uint64_t at = retry_ns_;
  {
    MutexLock lock(state_.mutex);
    if (state_.holds_back) at = std::min(at, MovesAt());
  }
  ArmTimer(at > now ? at - now : 1);
}

void Session::TellTried(std::string tried, const std::string* refused, bool holds_back) {
  MutexLock lock(state_.mutex);
  state_.tried = std::move(tried);
  // While who accepted has not greeted yet, the restore's wait still has its grace.
  const bool had_grace = std::exchange(state_.holds_back, holds_back || (state_.holds_back && socket_.valid()));
  if (had_grace && !state_.holds_back) state_.changed.NotifyAll();
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
    if (state_.connected) away_ns_ = MonotonicNs();
    if (state_.connected) LosePatience(state_.claim);
    state_.connected = false;
    state_.holds_back = false;  // the next attempt says so
    state_.changed.NotifyAll();
  }
  backoff_ns_ = std::clamp(2 * backoff_ns_, kFirstBackoffNs, kMaxBackoffNs);
  retry_ns_ = DeadlineAfter(backoff_ns_);
}

void Session::ArmTimer(uint64_t delay_ns) {
  itimerspec when = {};
  when.it_value.tv_sec = static_cast<time_t>(delay_ns / 1'000'000'000);
  when.it_value.tv_nsec = static_cast<long>(delay_ns % 1'000'000'000);
  timerfd_settime(timer_.get(), 0, &when, nullptr);
}

}  // namespace ckptd
