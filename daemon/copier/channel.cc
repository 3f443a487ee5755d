#include "daemon/copier/channel.h"

#include <poll.h>

#include <cerrno>
#include <utility>

#include "daemon/copier/requests.h"

namespace ckptd {
namespace {

// A trainer sends one request at a time; one that sends more during a COPY is read no further.
constexpr size_t kMostWaiting = 16;

constexpr short kClosed = POLLHUP | POLLRDHUP | POLLERR | POLLNVAL;

}  // namespace

// 0 also when there was nothing.
int Channel::Receive() {
  Packet packet;
  int error = ReceivePacket(socket_, Wait::kNo, &packet);
  if (error == ECONNRESET) return ENOTCONN;
  if (error == EAGAIN) return 0;
  if (error != 0 && error != EMSGSIZE) return error;
  if (IsHostDone(packet.bytes, packet.fds.size())) {
    host_done_ = ReadMessage<CopierSerial>(packet.bytes).serial;
  } else {
    waiting_.push_back(std::move(packet));
  }
  return 0;
}

int Channel::Next(Packet* out) {
  while (waiting_.empty()) {
    // Whatever the agent made of the socket: waiting here is never a loop.
    pollfd one = {socket_, POLLIN, 0};
    if (poll(&one, 1, -1) < 0 && errno != EINTR) return errno;
    if (int error = Receive()) return error;
  }
  *out = std::move(waiting_.front());
  waiting_.pop_front();
  return 0;
}

bool Channel::Watch(std::chrono::nanoseconds wait) {
  pollfd one = {socket_, POLLRDHUP, 0};
  if (waiting_.size() < kMostWaiting) one.events |= POLLIN;
  timespec limit = {0, static_cast<long>(wait.count())};
  int ready = ppoll(&one, 1, &limit, nullptr);
  if (ready <= 0) return ready == 0 || errno == EINTR;
  if ((one.revents & kClosed) != 0) return false;
  return Receive() == 0;
}

int Channel::Send(std::span<const uint8_t> bytes) {
  for (;;) {
    int error = SendPacket(socket_, bytes);
    if (error != EAGAIN) return error;
    pollfd one = {socket_, POLLOUT, 0};
    if (poll(&one, 1, -1) < 0 && errno != EINTR) return errno;
  }
}

}  // namespace ckptd
