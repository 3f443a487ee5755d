#include "daemon/copier/channel.h"

#include <poll.h>

#include <cerrno>
#include <utility>

#include "daemon/copier/failpoint.h"
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
  if (error != 0) packet.fds.clear();
  if (IsHostDone(packet.bytes, packet.fds.size())) {
    CKPTD_COPIER_FP("copy.host_done");
    host_done_ = ReadMessage<CopierSerial>(packet.bytes).serial;
  } else {
    waiting_.push_back(std::move(packet));
  }
  return 0;
}

int Channel::Next(Packet* out) {
  while (waiting_.empty()) {
    // Whatever the agent made of the socket: waiting here is never a loop.
    pollfd fds[] = {{socket_, POLLIN, 0}, {process_.get(), POLLIN, 0}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return errno;
    if (fds[1].revents != 0) return ENOTCONN;
    if (int error = Receive()) return error;
  }
  *out = std::move(waiting_.front());
  waiting_.pop_front();
  return 0;
}

bool Channel::Watch(std::chrono::nanoseconds wait) {
  timespec limit = {0, static_cast<long>(wait.count())};
  if (alone_) return ppoll(nullptr, 0, &limit, nullptr) <= 0 && std::chrono::steady_clock::now() < alone_until_;
  pollfd fds[] = {{socket_, POLLRDHUP, 0}, {process_.get(), POLLIN, 0}};
  if (waiting_.size() < kMostWaiting) fds[0].events |= POLLIN;
  int ready = ppoll(fds, 2, &limit, nullptr);
  if (ready <= 0) return ready == 0 || errno == EINTR;
  if ((fds[0].revents & kClosed) != 0 || fds[1].revents != 0) return false;
  return Receive() == 0;
}

bool Channel::AwaitEnd(std::chrono::nanoseconds timeout) const {
  pollfd one = {process_.get(), POLLIN, 0};
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count();
  return process_.valid() && poll(&one, 1, static_cast<int>(ms)) > 0;
}

void Channel::GoOnAlone(std::chrono::nanoseconds time) {
  alone_ = true;
  alone_until_ = std::chrono::steady_clock::now() + time;
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
