#include "daemon/transport/sockets/plain_wire.h"

#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::transport {

size_t PlainWire::Read(std::span<std::byte> into) {
  size_t got = 0;
  while (got < into.size() && !read_over_) {
    const ssize_t came = recv(fd(), into.data() + got, into.size() - got, 0);
    if (came > 0) {
      got += static_cast<size_t>(came);
    } else if (came == 0 || !(WouldBlock(errno) || errno == EINTR)) {
      read_over_ = true;
    } else if (errno != EINTR) {
      break;
    }
  }
  return got;
}

size_t PlainWire::Write(std::span<const std::byte> from, bool more) {
  size_t taken = 0;
  full_ = false;
  while (taken < from.size() && !full_ && !mute_) {
    const ssize_t took = send(fd(), from.data() + taken, from.size() - taken, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    if (took >= 0) {
      taken += static_cast<size_t>(took);
    } else if (WouldBlock(errno)) {
      full_ = true;
    } else if (errno != EINTR) {
      mute_ = true;
    }
  }
  return taken;
}

absl::StatusOr<size_t> PlainWire::SendFile(int file, uint64_t offset, size_t bytes) {
  size_t taken = 0;
  full_ = false;
  while (taken < bytes && !full_ && !mute_) {
    off_t at = static_cast<off_t>(offset + taken);
    const ssize_t took = sendfile(fd(), file, &at, bytes - taken);
    if (took > 0) {
      taken += static_cast<size_t>(took);
    } else if (took == 0) {
      return Error(ErrorCode::CORRUPT, absl::StrCat("sendfile: the file ends at ", offset + taken, ", ", bytes - taken,
                                                    " bytes too early"));
    } else if (WouldBlock(errno)) {
      full_ = true;
    } else if (errno == EPIPE || errno == ECONNRESET || errno == ETIMEDOUT) {
      mute_ = true;
    } else if (errno != EINTR) {
      return ErrnoError(errno, "sendfile", absl::StrCat("at ", offset + taken));
    }
  }
  return taken;
}

void PlainWire::EndWrites() { (void)shutdown(fd(), SHUT_WR); }

uint32_t PlainWire::waits_for() const { return (read_over_ ? 0U : EPOLLIN) | (full_ ? EPOLLOUT : 0U); }

}  // namespace ckptd::transport
