#include "daemon/transport/sockets/wire.h"

#include <sys/socket.h>

#include <cerrno>

#include "daemon/base/errors.h"

namespace ckptd::transport {

absl::StatusOr<size_t> Wire::SendFile(int, uint64_t, size_t) {
  return Error(ErrorCode::INTERNAL, "this way sends no files");
}

bool Wire::WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

void Wire::GiveUp() {
  mute_ = true;
  CutOff();
}

void Wire::CutOff() const { (void)shutdown(fd_.get(), SHUT_RDWR); }

}  // namespace ckptd::transport
