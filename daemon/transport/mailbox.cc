#include "daemon/transport/mailbox.h"

#include <utility>

namespace ckptd::transport {

std::shared_ptr<Mailbox> Mailbox::Create(Loop& loop) { return std::shared_ptr<Mailbox>(new Mailbox(loop)); }

void Mailbox::Put(std::function<void()> event) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    events_.push_back(std::move(event));
    if (std::exchange(posted_, true)) return;
  }
  const bool posted = loop_.Post([weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Drain();
  });
  if (posted) return;
  MutexLock lock(mutex_);
  posted_ = false;
}

std::vector<std::function<void()>> Mailbox::TakeAll() {
  MutexLock lock(mutex_);
  posted_ = false;
  return std::exchange(events_, {});
}

void Mailbox::Drain() {
  const auto keep = shared_from_this();
  for (auto events = TakeAll(); !events.empty(); events = TakeAll()) {
    for (auto& event : events) {
      if (open_on_loop_) event();
    }
  }
}

void Mailbox::Close() {
  open_on_loop_ = false;
  std::vector<std::function<void()>> dropped;  // what they hold is let go without the lock
  MutexLock lock(mutex_);
  closed_ = true;
  dropped.swap(events_);
}

}  // namespace ckptd::transport
