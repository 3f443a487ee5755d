#include "daemon/transport/sockets/ready_set.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <utility>
#include <vector>

#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::transport {
namespace {

constexpr int kEventsAtOnce = 64;

}  // namespace

absl::StatusOr<std::shared_ptr<ReadySet>> ReadySet::Create() {
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return ErrnoError(errno, "epoll_create1", "");
  return std::shared_ptr<ReadySet>(new ReadySet(std::move(epoll)));
}

std::shared_ptr<Ready> ReadySet::Fired(uint64_t id) {
  MutexLock lock(mutex_);
  const auto found = places_.find(id);
  if (found == places_.end()) return nullptr;
  *found->second.waits_for = 0;
  return found->second.who.lock();
}

void ReadySet::Tell() {
  std::array<epoll_event, kEventsAtOnce> events;
  const int count = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, 0);
  for (int i = 0; i < count; ++i) {
    if (const auto here = Fired(events[i].data.u64)) here->OnReady();
  }
}

void ReadySet::CutOffAll() {
  std::vector<std::shared_ptr<Ready>> all;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, place] : places_) all.push_back(place.who.lock());
  }
  for (const auto& here : all) {
    if (here) here->CutOff();
  }
}

ReadyPlace::ReadyPlace(std::shared_ptr<ReadySet> set, int fd, std::weak_ptr<Ready> who)
    : set_(std::move(set)), fd_(fd) {
  MutexLock lock(set_->mutex_);
  id_ = ++set_->last_;
  set_->places_[id_] = {std::move(who), waits_for_};
}

absl::StatusOr<std::unique_ptr<ReadyPlace>> ReadyPlace::Take(std::shared_ptr<ReadySet> set, int fd,
                                                             std::weak_ptr<Ready> who) {
  auto place = std::make_unique<ReadyPlace>(std::move(set), fd, std::move(who));
  epoll_event event{};
  event.events = EPOLLONESHOT;
  event.data.u64 = place->id_;
  if (epoll_ctl(place->set_->epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return place;
  return ErrnoError(errno, "epoll_ctl", "bulk connection");
}

ReadyPlace::~ReadyPlace() {
  (void)epoll_ctl(set_->epoll_.get(), EPOLL_CTL_DEL, fd_, nullptr);
  MutexLock lock(set_->mutex_);
  set_->places_.erase(id_);
}

// What fired since was told, or will be: so nobody who waits for the same is forgotten.
void ReadyPlace::WaitFor(uint32_t events) {
  if (waits_for_->exchange(events) == events) return;
  epoll_event event{};
  event.events = events | EPOLLONESHOT;
  event.data.u64 = id_;
  (void)epoll_ctl(set_->epoll_.get(), EPOLL_CTL_MOD, fd_, &event);
}

}  // namespace ckptd::transport
