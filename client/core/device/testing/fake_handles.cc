#include "client/core/device/testing/fake_handles.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <thread>

#include "client/core/device/testing/fake_memory.h"

namespace ckptd::fake {
namespace {

constexpr int kWaiting = 64;
constexpr timeval kPatience = {.tv_sec = 2, .tv_usec = 0};  // with a process that is stopped

struct Address {
  sockaddr_un name = {};
  socklen_t length = 0;
};

// Abstract: nothing stays in any folder.
Address AddressOf(uint64_t number) {
  Address address;
  address.name.sun_family = AF_UNIX;
  char* text = address.name.sun_path + 1;
  int length = snprintf(text, sizeof address.name.sun_path - 1, "fakecuda-%016lx", number);
  address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(length));
  return address;
}

bool IsSameUser(int peer) {
  ucred user{};
  socklen_t bytes = sizeof user;
  return getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &user, &bytes) == 0 && user.uid == geteuid();
}

bool SetPatience(int fd) {
  return setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof kPatience) == 0 &&
         setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof kPatience) == 0;
}

// One byte, for a message without any carries no descriptor.
struct Message {
  char byte = 0;
  iovec part = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr head = {.msg_name = nullptr,
                 .msg_namelen = 0,
                 .msg_iov = &part,
                 .msg_iovlen = 1,
                 .msg_control = control,
                 .msg_controllen = sizeof control,
                 .msg_flags = 0};
};

void Send(int peer, int fd) {
  Message message;
  cmsghdr* rights = CMSG_FIRSTHDR(&message.head);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  (void)sendmsg(peer, &message.head, MSG_NOSIGNAL);
}

int Receive(int peer) {
  Message message;
  if (recvmsg(peer, &message.head, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* rights = CMSG_FIRSTHDR(&message.head);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  return fd;
}

void Answer(int peer) {
  uint64_t id = 0;
  if (!IsSameUser(peer) || !SetPatience(peer) || recv(peer, &id, sizeof id, 0) != sizeof id) return;
  int fd = Memory::Get().OpenShared(id);
  if (fd < 0) return;
  Send(peer, fd);
  close(fd);
}

void Serve(int listener) {
  for (int peer = 0; (peer = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
    Answer(peer);
    close(peer);
  }
}

uint64_t StartServer() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) return 0;
  const Address address = AddressOf(number);
  int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (listener < 0) return 0;
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address.name), address.length) != 0 ||
      listen(listener, kWaiting) != 0) {
    close(listener);
    return 0;
  }
  std::thread(Serve, listener).detach();  // like a driver's, to the end of the process
  return number;
}

}  // namespace

uint64_t HandleAddress() {
  static const uint64_t address = StartServer();
  return address;
}

int FetchHandle(uint64_t address, uint64_t id) {
  const Address server = AddressOf(address);
  int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (peer < 0) return -1;
  int fd = -1;
  if (SetPatience(peer) && connect(peer, reinterpret_cast<const sockaddr*>(&server.name), server.length) == 0 &&
      send(peer, &id, sizeof id, MSG_NOSIGNAL) == sizeof id) {
    fd = Receive(peer);
  }
  close(peer);
  return fd;
}

}  // namespace ckptd::fake
