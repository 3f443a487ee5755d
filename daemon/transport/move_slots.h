// So many at once; the rest wait, in order. One thread.
#ifndef CKPTD_DAEMON_TRANSPORT_MOVE_SLOTS_H_
#define CKPTD_DAEMON_TRANSPORT_MOVE_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

namespace ckptd::transport {

class MoveSlots {
 public:
  using Ticket = uint64_t;
  explicit MoveSlots(size_t count) : free_(count) {}

  // `granted` runs when one is free, which may be at once; then Return() gives it back.
  Ticket Ask(std::function<void()> granted) {
    waiting_.emplace(++last_, std::move(granted));
    const Ticket ticket = last_;
    Grant();
    return ticket;
  }
  // One that was granted is no error.
  void Withdraw(Ticket ticket) { waiting_.erase(ticket); }
  void Return() {
    ++free_;
    Grant();
  }
  [[nodiscard]] size_t free() const { return free_; }

 private:
  void Grant() {
    if (free_ == 0 || waiting_.empty()) return;
    --free_;
    const std::function<void()> granted = std::move(waiting_.extract(waiting_.begin()).mapped());
    granted();
  }

  size_t free_;
  Ticket last_ = 0;
  std::map<Ticket, std::function<void()>> waiting_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_MOVE_SLOTS_H_
