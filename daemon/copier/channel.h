// The socket to the trainer. Requests come out one by one and in order; HOST_DONE, which belongs to the COPY that is
// under way, is taken in whenever somebody looks.
//
// Threads: one.
#ifndef CKPTD_DAEMON_COPIER_CHANNEL_H_
#define CKPTD_DAEMON_COPIER_CHANNEL_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>

#include "client/core/wire/fds.h"
#include "client/core/wire/packet.h"

namespace ckptd {

class Channel {
 public:
  explicit Channel(int socket) : socket_(socket) {}
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Waits for a request. 0; ENOTCONN: the trainer has closed; or what is wrong with the socket. A packet that broke
  // the limits of packet.h comes as an empty one.
  [[nodiscard]] int Next(Packet* out);

  // Takes in what has come and waits for it at most so long. False: the trainer has closed.
  [[nodiscard]] bool Watch(std::chrono::nanoseconds wait);

  [[nodiscard]] bool HostIsDone(uint64_t serial) const { return alone_ || host_done_ == serial; }

  // The trainer's pidfd: its end counts as closing from now on. Its forked workers may keep the socket open.
  void SetProcess(UniqueFd process) { process_ = std::move(process); }
  // False: it has not ended in time, or SetProcess never came.
  [[nodiscard]] bool AwaitEnd(std::chrono::nanoseconds timeout) const;
  // There is no trainer any more: its bytes are there, and Watch says false only when the time is over.
  void GoOnAlone(std::chrono::nanoseconds time);

  // Lost where the trainer reads nothing.
  void Hint(std::span<const uint8_t> bytes) { (void)SendPacket(socket_, bytes); }

  // Waits while the trainer reads nothing. 0 or an errno: it has closed.
  [[nodiscard]] int Send(std::span<const uint8_t> bytes);

 private:
  int Receive();

  const int socket_;
  UniqueFd process_;
  bool alone_ = false;
  std::chrono::steady_clock::time_point alone_until_;
  std::deque<Packet> waiting_;
  uint64_t host_done_ = 0;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_COPIER_CHANNEL_H_
