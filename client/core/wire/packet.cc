#include "client/core/wire/packet.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

namespace ckptd {
namespace {

// Room for exactly kMaxPacketFds: the kernel installs no more than fit and says MSG_CTRUNC.
union Control {
  cmsghdr align;
  char room[CMSG_SPACE(kMaxPacketFds * sizeof(int))];
};

void AttachFds(std::span<const int> fds, Control* control, msghdr* message) {
  if (fds.empty()) return;
  std::memset(control, 0, sizeof *control);
  message->msg_control = control->room;
  message->msg_controllen = CMSG_SPACE(fds.size_bytes());
  cmsghdr* header = CMSG_FIRSTHDR(message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size_bytes());
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
}

// Every descriptor of the message gets an owner, before anything is judged.
void TakeFds(msghdr* message, std::vector<UniqueFd>* fds) {
  for (cmsghdr* header = CMSG_FIRSTHDR(message); header != nullptr; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    fds->reserve(fds->size() + count);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
      fds->emplace_back(fd);
    }
  }
}

int Receive(int socket, int flags, Fds fds, Packet* packet) {
  Control control;
  packet->bytes.resize(kMaxPacketBytes);
  iovec part = {packet->bytes.data(), packet->bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = fds == Fds::kTake ? control.room : nullptr;
  message.msg_controllen = fds == Fds::kTake ? sizeof control.room : 0;
  ssize_t size;
  do {
    size = recvmsg(socket, &message, flags);
  } while (size < 0 && errno == EINTR);
  if (size < 0) return errno;
  TakeFds(&message, &packet->fds);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) return EMSGSIZE;
  packet->bytes.resize(static_cast<size_t>(size));
  return size == 0 ? ENOTCONN : 0;
}

}  // namespace

int SendPacket(int socket, std::span<const uint8_t> bytes, std::span<const int> fds) {
  if (bytes.empty()) return EINVAL;
  if (bytes.size() > kMaxPacketBytes || fds.size() > kMaxPacketFds) return EMSGSIZE;
  Control control;
  iovec part = {const_cast<uint8_t*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  AttachFds(fds, &control, &message);
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent < 0 ? errno : 0;
}

int ReceivePacket(int socket, Wait wait, Packet* packet, Fds fds) {
  packet->fds.clear();
  int error = Receive(socket, MSG_CMSG_CLOEXEC | (wait == Wait::kNo ? MSG_DONTWAIT : 0), fds, packet);
  if (error != 0) packet->bytes.clear();
  return error;
}

}  // namespace ckptd
