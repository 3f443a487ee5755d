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
  away_ns_ = MonotonicNs();
  Connect();
  bool readable = false;
  for (AwaitRetry(); WaitForEvent(&readable); AwaitRetry()) {
    if (readable && !Receive()) Disconnect();
    SendWhatIsDue();
  }
  SendBye();
}

// The process of a copier that is ready and that no save uses: only this thread would notice its end before the next
// save, or before a rescue that finds none. With the mutex held.
std::shared_ptr<const UniqueFd> Session::IdleCopier() const {
  const Pull& pull = state_.pull;
  const bool idle = pull.stage == Pull::Stage::kReady && pull.link != nullptr && !pull.in_use && !pull.ended;
  return idle ? pull.link->process() : nullptr;
}

// False: the handle is being closed.
bool Session::WaitForEvent(bool* readable) {
  short socket_events = connection_.blocked ? POLLIN | POLLOUT : POLLIN;
  std::shared_ptr<const UniqueFd> copier;
  {
    MutexLock lock(state_.mutex);
    copier = IdleCopier();
  }
  pollfd fds[] = {{state_.wake.get(), POLLIN, 0},
                  {timer_.get(), POLLIN, 0},
                  {socket_.get(), socket_events, 0},
                  {copier == nullptr ? -1 : copier->get(), POLLIN, 0}};
  while (poll(fds, 4, -1) < 0 && errno == EINTR) {
  }
  if (fds[0].revents != 0) Drain(state_.wake.get());
  *readable = (fds[2].revents & ~POLLOUT) != 0;
  if (fds[1].revents != 0) {
    Drain(timer_.get());
    OnTimer();
  }
  MutexLock lock(state_.mutex);
  if (fds[3].revents != 0 && copier == IdleCopier()) {
    state_.pull.ended = true;
    state_.changed.NotifyAll();  // the pull thread lets go of it
  }
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
