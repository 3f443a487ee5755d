// Sockets whose owners wait on threads of their own: each says when it has to wait, and for what, and is told once when
// that is so. One thread tells all of them.
#ifndef CKPTD_DAEMON_TRANSPORT_SOCKETS_READY_SET_H_
#define CKPTD_DAEMON_TRANSPORT_SOCKETS_READY_SET_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/mutex.h"
#include "daemon/os/fd.h"

namespace ckptd::transport {

// On the thread that tells.
class Ready {
 public:
  virtual ~Ready() = default;
  virtual void OnReady() = 0;
  // Nothing comes or goes any more.
  virtual void CutOff() = 0;
};

class ReadySet {
 public:
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<ReadySet>> Create();

  // Readable when somebody is to be told.
  [[nodiscard]] int fd() const { return epoll_.get(); }
  // The thread that tells: some of them, so that others have their turn.
  void Tell() CKPTD_EXCLUDES(mutex_);
  void CutOffAll() CKPTD_EXCLUDES(mutex_);

 private:
  friend class ReadyPlace;
  explicit ReadySet(UniqueFd epoll) : epoll_(std::move(epoll)) {}
  using Events = std::shared_ptr<std::atomic<uint32_t>>;  // for which a place waits
  struct Place {
    std::weak_ptr<Ready> who;
    Events waits_for;
  };
  [[nodiscard]] std::shared_ptr<Ready> Fired(uint64_t id) CKPTD_EXCLUDES(mutex_);

  const UniqueFd epoll_;
  Mutex mutex_;
  uint64_t last_ CKPTD_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Place> places_ CKPTD_GUARDED_BY(mutex_);
};

// One socket's place in it, until it goes. One thread at a time.
class ReadyPlace {
 public:
  // `fd` outlives the place.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<ReadyPlace>> Take(std::shared_ptr<ReadySet> set, int fd,
                                                                        std::weak_ptr<Ready> who);
  ReadyPlace(std::shared_ptr<ReadySet> set, int fd, std::weak_ptr<Ready> who);
  ~ReadyPlace();
  ReadyPlace(const ReadyPlace&) = delete;
  ReadyPlace& operator=(const ReadyPlace&) = delete;

  // Once: EPOLLIN, EPOLLOUT; an error always counts. At once, if it is so already.
  void WaitFor(uint32_t events);

 private:
  const std::shared_ptr<ReadySet> set_;
  const int fd_;
  const ReadySet::Events waits_for_ = std::make_shared<std::atomic<uint32_t>>(0);
  uint64_t id_ = 0;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_SOCKETS_READY_SET_H_
