#include "client/src/session.h"

#include <poll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

namespace ckptd {
namespace {

void Drain(int fd) {
  uint64_t count = 0;
  [[maybe_unused]] ssize_t ignored = read(fd, &count, sizeof count);  // nonblocking
}

}  // namespace

bool Session::Start() {
  timer_ = UniqueFd(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  return timer_.valid() && thread_.Start("ckpt-session", &Session::Run, &Session::Broke, this);
}

void Session::Run(void* self) { static_cast<Session*>(self)->Loop(); }

// The agent is not kept waiting for answers either.
void Session::Broke(void* self, const char* why) noexcept {
  auto* session = static_cast<Session*>(self);
  session->socket_.Reset();
  State& state = session->state_;
  MutexLock lock(state.mutex);
  state.connected = false;
  state.deaf = true;
  state.Break("ckpt-session", why);
}

void Session::Loop() {
  Connect();
  bool readable = false;
  while (WaitForEvent(&readable)) {
    if (readable && !Receive()) Disconnect();
    SendWhatIsDue();
  }
  SendBye();
}

// False: the handle is being closed.
bool Session::WaitForEvent(bool* readable) {
  short socket_events = connection_.blocked ? POLLIN | POLLOUT : POLLIN;
  pollfd fds[] = {{state_.wake.get(), POLLIN, 0}, {timer_.get(), POLLIN, 0}, {socket_.get(), socket_events, 0}};
  while (poll(fds, 3, -1) < 0 && errno == EINTR) {
  }
  if (fds[0].revents != 0) Drain(state_.wake.get());
  *readable = (fds[2].revents & ~POLLOUT) != 0;
  if (fds[1].revents != 0) {
    Drain(timer_.get());
    OnTimer();
  }
  MutexLock lock(state_.mutex);
  return !state_.stopping;
}

// Either there is no connection, or something was refused that may be granted now.
void Session::OnTimer() {
  if (!socket_.valid()) return Connect();
  connection_.layout = nullptr;
  if (connection_.refused) connection_.joined_ticket = 0;
  MutexLock lock(state_.mutex);
  AskAgain();
}

// Nobody waits for an implicit claim, and so nobody else makes another. With the mutex held.
void Session::AskAgain() {
  Claim& claim = state_.claim;
  if (claim.stage != Claim::Stage::kFailed || !claim.implicit) return;
  claim.stage = Claim::Stage::kJoining;
  connection_.joined_ticket = 0;
}

}  // namespace ckptd
