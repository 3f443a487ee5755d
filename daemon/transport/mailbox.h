// Brings what happens on gRPC's threads to the loop's thread, in order. One message of the loop's queue is in use at a
// time, however much comes; where that queue is full nothing is lost: Drain is called by a timer too.
#ifndef CKPTD_DAEMON_TRANSPORT_MAILBOX_H_
#define CKPTD_DAEMON_TRANSPORT_MAILBOX_H_

#include <functional>
#include <memory>
#include <vector>

#include "daemon/base/mutex.h"
#include "daemon/os/loop.h"

namespace ckptd::transport {

// Shared by whoever puts. Bounded by them: each stream has a few events at a time and waits for the owner's answer.
class Mailbox : public std::enable_shared_from_this<Mailbox> {
 public:
  // `loop` is there until Close() and until the last Put that began before it has returned.
  [[nodiscard]] static std::shared_ptr<Mailbox> Create(Loop& loop);

  // Any thread. `event` runs on the loop's thread; dropped after Close().
  void Put(std::function<void()> event) CKPTD_EXCLUDES(mutex_);
  // The loop's thread: all events that are there, and those that they make.
  void Drain() CKPTD_EXCLUDES(mutex_);
  // The loop's thread, for good. Nothing runs any more.
  void Close() CKPTD_EXCLUDES(mutex_);

 private:
  explicit Mailbox(Loop& loop) : loop_(loop) {}
  [[nodiscard]] std::vector<std::function<void()>> TakeAll() CKPTD_EXCLUDES(mutex_);

  Loop& loop_;
  bool open_on_loop_ = true;  // the loop's thread only
  Mutex mutex_;
  bool closed_ CKPTD_GUARDED_BY(mutex_) = false;
  bool posted_ CKPTD_GUARDED_BY(mutex_) = false;
  std::vector<std::function<void()>> events_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_MAILBOX_H_
