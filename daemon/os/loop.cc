#include "daemon/os/loop.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/event_fd.h"

namespace ckptd {
namespace {

constexpr uint64_t kWakeToken = 0;
constexpr int kEventsPerRound = 64;
constexpr Nanos kLongest = std::chrono::hours(1);
constexpr Nanos kMillisecond = std::chrono::milliseconds(1);

absl::Status Control(int epoll, int operation, int fd, uint32_t events, uint64_t token) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  if (epoll_ctl(epoll, operation, fd, &event) == 0) return absl::OkStatus();
  return ErrnoError(errno, "epoll_ctl", absl::StrCat("fd ", fd));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Loop>> Loop::Create(const Clock& clock, size_t post_capacity) {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoError(errno, "epoll_create1", "");
  CKPTD_ASSIGN_OR_RETURN(UniqueFd wake, CreateEventFd());
  CKPTD_RETURN_IF_ERROR(Control(epoll.get(), EPOLL_CTL_ADD, wake.get(), EPOLLIN, kWakeToken));
  return std::unique_ptr<Loop>(new Loop(clock, post_capacity, std::move(epoll), std::move(wake)));
}

Loop::Loop(const Clock& clock, size_t post_capacity, UniqueFd epoll, UniqueFd wake)
    : clock_(clock), epoll_(std::move(epoll)), wake_(std::move(wake)), posted_(post_capacity) {}

// What still waits may own what, at its own end, cancels timers, unwatches or posts. So it goes while the loop is
// whole, one by one and out of the containers, until nothing is left that could bring more.
Loop::~Loop() {
  posted_.Close();
  for (bool more = true; more;) {
    more = false;
    while (auto callback = posted_.TryPop()) more = true;
    while (!timers_.empty()) {
      const auto timer = timers_.extract(timers_.begin());
      deadline_of_timer_.erase(timer.key().second);
      more = true;
    }
    while (!registrations_.empty()) {
      const auto keep = registrations_.begin()->second;
      Unwatch(keep->fd);
      more = true;
    }
  }
}

absl::Status Loop::Watch(int fd, uint32_t events, FdCallback callback) {
  const uint64_t token = next_token_++;
  CKPTD_RETURN_IF_ERROR(Control(epoll_.get(), EPOLL_CTL_ADD, fd, events, token));
  registrations_[token] = std::make_shared<Registration>(Registration{fd, std::move(callback)});
  token_of_fd_[fd] = token;
  return absl::OkStatus();
}

absl::Status Loop::ChangeEvents(int fd, uint32_t events) {
  auto token = token_of_fd_.find(fd);
  if (token == token_of_fd_.end()) {
    return Error(ErrorCode::INTERNAL, absl::StrCat("loop: fd ", fd, " is not watched"));
  }
  return Control(epoll_.get(), EPOLL_CTL_MOD, fd, events, token->second);
}

void Loop::Unwatch(int fd) {
  auto token = token_of_fd_.find(fd);
  if (token == token_of_fd_.end()) return;
  (void)Control(epoll_.get(), EPOLL_CTL_DEL, fd, 0, 0);
  registrations_.erase(token->second);
  token_of_fd_.erase(token);
}

Loop::TimerId Loop::After(Nanos delay, std::function<void()> callback) {
  return At(clock_.Monotonic() + delay, std::move(callback));
}

Loop::TimerId Loop::At(Nanos monotonic, std::function<void()> callback) {
  const TimerId id = next_timer_++;
  timers_.emplace(std::pair(monotonic, id), std::move(callback));
  deadline_of_timer_[id] = monotonic;
  return id;
}

void Loop::CancelTimer(TimerId id) {
  auto deadline = deadline_of_timer_.find(id);
  if (deadline == deadline_of_timer_.end()) return;
  timers_.erase(std::pair(deadline->second, id));
  deadline_of_timer_.erase(deadline);
}

bool Loop::Post(std::function<void()> callback) {
  if (!posted_.TryPush(std::move(callback))) return false;
  SignalEventFd(wake_.get());
  return true;
}

void Loop::Stop() {
  stop_.store(true);
  SignalEventFd(wake_.get());
}

absl::Status Loop::Run() {
  while (!stop_.load()) CKPTD_RETURN_IF_ERROR(RunOnce(kLongest));
  return absl::OkStatus();
}

absl::Status Loop::RunOnce(Nanos at_most) {
  std::array<epoll_event, kEventsPerRound> events;
  int count = epoll_wait(epoll_.get(), events.data(), kEventsPerRound, TimeoutMs(at_most));
  if (count < 0 && errno != EINTR) return ErrnoError(errno, "epoll_wait", "");
  for (int i = 0; i < count && !stop_.load(); ++i) Dispatch(events[i].data.u64, events[i].events);
  RunTimers();
  return absl::OkStatus();
}

int Loop::TimeoutMs(Nanos at_most) const {
  Nanos wait = std::min(at_most, kLongest);
  if (!timers_.empty()) wait = std::min(wait, timers_.begin()->first.first - clock_.Monotonic());
  if (wait <= Nanos(0)) return 0;
  return static_cast<int>((wait + kMillisecond - Nanos(1)) / kMillisecond);  // up: never wake before the deadline
}

void Loop::Dispatch(uint64_t token, uint32_t events) {
  if (token == kWakeToken) return RunPosted();
  auto found = registrations_.find(token);
  if (found == registrations_.end()) return;           // unwatched by an earlier callback of this round
  std::shared_ptr<Registration> keep = found->second;  // the callback may unwatch itself
  keep->callback(events);
}

// At most what was queued on entry: a callback that posts again must not starve descriptors and timers.
void Loop::RunPosted() {
  DrainEventFd(wake_.get());
  size_t queued = posted_.size();
  for (; queued > 0 && !stop_.load(); --queued) {
    if (auto callback = posted_.TryPop()) (*callback)();
  }
}

void Loop::RunTimers() {
  const Nanos now = clock_.Monotonic();
  while (!timers_.empty() && timers_.begin()->first.first <= now && !stop_.load()) {
    auto timer = timers_.extract(timers_.begin());
    deadline_of_timer_.erase(timer.key().second);
    timer.mapped()();
  }
}

}  // namespace ckptd
