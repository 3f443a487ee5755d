// The event loop of the control thread: epoll, timers on the monotonic clock, and messages from other threads.
//
// Everything but Post and Stop belongs to the thread that calls Run (before Run: to whoever builds the loop). Callbacks
// run one at a time on it and must not block. A callback may watch, unwatch, add and cancel timers, also its own; after
// Unwatch or CancelTimer returned, that callback is not run again.
#ifndef CKPTD_DAEMON_OS_LOOP_H_
#define CKPTD_DAEMON_OS_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/base/queue.h"
#include "daemon/os/fd.h"

namespace ckptd {

class Loop {
 public:
  using TimerId = uint64_t;                                 // 0 is never one
  using FdCallback = std::function<void(uint32_t events)>;  // EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP as epoll gave them

  // `clock` outlives the loop. At most `post_capacity` messages wait in Post's queue.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<Loop>> Create(const Clock& clock, size_t post_capacity);
  // What was posted and not run, timers and watches are destroyed unrun; they may still use the loop, but for Post,
  // which takes nothing any more.
  ~Loop();

  // `fd` stays the caller's and is unwatched before it is closed. `events`: EPOLLIN and/or EPOLLOUT, level-triggered
  // unless EPOLLET is said, too.
  [[nodiscard]] absl::Status Watch(int fd, uint32_t events, FdCallback callback);
  [[nodiscard]] absl::Status ChangeEvents(int fd, uint32_t events);
  void Unwatch(int fd);  // an unwatched fd is no error

  TimerId After(Nanos delay, std::function<void()> callback);
  TimerId At(Nanos monotonic, std::function<void()> callback);
  void CancelTimer(TimerId id);  // one that has run is no error

  // Any thread. `callback` runs once on the loop's thread; false when the queue is full or the loop is stopped for
  // good.
  [[nodiscard]] bool Post(std::function<void()> callback);
  // Any thread. Run returns after the callback that is running.
  void Stop();

  // Until Stop().
  [[nodiscard]] absl::Status Run();
  [[nodiscard]] const Clock& clock() const { return clock_; }
  // One round: waits at most `at_most` for something to do, does all of it.
  [[nodiscard]] absl::Status RunOnce(Nanos at_most);

 private:
  struct Registration {
    int fd;
    FdCallback callback;
  };

  Loop(const Clock& clock, size_t post_capacity, UniqueFd epoll, UniqueFd wake);
  int TimeoutMs(Nanos at_most) const;
  void Dispatch(uint64_t token, uint32_t events);
  void RunPosted();
  void RunTimers();

  const Clock& clock_;
  UniqueFd epoll_;
  UniqueFd wake_;
  BoundedQueue<std::function<void()>> posted_;
  std::atomic<bool> stop_{false};
  uint64_t next_token_ = 1;  // events name registrations by token, so a reused fd number never gets an old event
  absl::flat_hash_map<uint64_t, std::shared_ptr<Registration>> registrations_;
  absl::flat_hash_map<int, uint64_t> token_of_fd_;
  TimerId next_timer_ = 1;
  std::map<std::pair<Nanos, TimerId>, std::function<void()>> timers_;
  absl::flat_hash_map<TimerId, Nanos> deadline_of_timer_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_LOOP_H_
