#include "client/core/wire/packet.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>

namespace ckptd {
namespace {

std::vector<uint8_t> Bytes(size_t size) { return std::vector<uint8_t>(size, 'x'); }

size_t OpenFds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class Wire : public ::testing::Test {
 protected:
  void SetUp() override {
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    here_.Reset(pair[0]);
    there_.Reset(pair[1]);
  }
  // As a peer that does not keep to our limits.
  void SendRaw(size_t size, size_t fds, int fd) {
    std::vector<uint8_t> bytes = Bytes(size);
    std::vector<char> control(CMSG_SPACE(fds * sizeof(int)));
    iovec part = {bytes.data(), bytes.size()};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds * sizeof(int));
    for (size_t i = 0; i < fds; ++i) std::memcpy(CMSG_DATA(header) + i * sizeof fd, &fd, sizeof fd);
    ASSERT_EQ(sendmsg(there_.get(), &message, 0), static_cast<ssize_t>(size));
  }
  UniqueFd here_, there_;
  Packet packet_;
};

TEST_F(Wire, KeepsBoundaries) {
  for (size_t size : {size_t{1}, size_t{100}, kMaxPacketBytes}) ASSERT_EQ(SendPacket(there_.get(), Bytes(size)), 0);
  for (size_t size : {size_t{1}, size_t{100}, kMaxPacketBytes}) {
    ASSERT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_), 0);
    EXPECT_EQ(packet_.bytes, Bytes(size));
    EXPECT_TRUE(packet_.fds.empty());
  }
  EXPECT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_), EAGAIN);
  EXPECT_TRUE(packet_.bytes.empty());
}

TEST_F(Wire, CarriesDescriptors) {
  UniqueFd file(open("/dev/null", O_RDONLY));
  std::vector<int> fds(kMaxPacketFds, file.get());
  ASSERT_EQ(SendPacket(there_.get(), Bytes(3), fds), 0);
  ASSERT_EQ(ReceivePacket(here_.get(), Wait::kYes, &packet_), 0);
  ASSERT_EQ(packet_.fds.size(), kMaxPacketFds);
  struct stat sent, got;
  ASSERT_EQ(fstat(file.get(), &sent), 0);
  for (const UniqueFd& fd : packet_.fds) {
    ASSERT_EQ(fstat(fd.get(), &got), 0);
    EXPECT_EQ(got.st_rdev, sent.st_rdev);
    EXPECT_NE(fcntl(fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST_F(Wire, RefusesToSendWhatBreaksTheLimits) {
  EXPECT_EQ(SendPacket(there_.get(), {}), EINVAL);
  EXPECT_EQ(SendPacket(there_.get(), Bytes(kMaxPacketBytes + 1)), EMSGSIZE);
  EXPECT_EQ(SendPacket(there_.get(), Bytes(1), std::vector<int>(kMaxPacketFds + 1, 0)), EMSGSIZE);
  EXPECT_EQ(SendPacket(there_.get(), Bytes(1), std::vector<int>{-1}), EBADF);
  EXPECT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_), EAGAIN);
}

TEST_F(Wire, EveryDescriptorOfABadPacketHasAnOwner) {
  const size_t before = OpenFds();
  for (size_t fds : {size_t{1}, kMaxPacketFds}) {
    SendRaw(kMaxPacketBytes + 1, fds, 0);
    EXPECT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_), EMSGSIZE);
    EXPECT_EQ(packet_.fds.size(), fds);
    packet_.fds.clear();
    EXPECT_EQ(OpenFds(), before);
  }
  for (size_t fds : {kMaxPacketFds + 1, size_t{253}}) {
    SendRaw(10, fds, 0);
    EXPECT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_), EMSGSIZE);
    EXPECT_EQ(packet_.fds.size(), kMaxPacketFds);
    packet_.fds.clear();
    EXPECT_EQ(OpenFds(), before);
  }
  ASSERT_EQ(SendPacket(there_.get(), Bytes(7)), 0);  // the connection goes on
  EXPECT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_), 0);
}

TEST_F(Wire, DescriptorsThatAreRefusedAreNeverOpened) {
  const size_t before = OpenFds();
  for (size_t fds : {size_t{1}, kMaxPacketFds, size_t{253}}) {
    SendRaw(10, fds, 0);
    EXPECT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_, Fds::kRefuse), EMSGSIZE);
    EXPECT_EQ(OpenFds(), before);
  }
  ASSERT_EQ(SendPacket(there_.get(), Bytes(7)), 0);
  EXPECT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_, Fds::kRefuse), 0);
}

TEST_F(Wire, ReceivingAgainClosesTheFormerDescriptors) {
  const size_t before = OpenFds();
  for (int i = 0; i < 3; ++i) {
    SendRaw(1, 2, 0);
    ASSERT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_), 0);
    EXPECT_EQ(OpenFds(), before + 2);
  }
}

TEST_F(Wire, FullSocketIsWouldBlock) {
  int error = 0, sent = 0;
  while (error == 0 && sent < 100000) error = SendPacket(there_.get(), Bytes(1000)), ++sent;
  EXPECT_EQ(error, EAGAIN);
  EXPECT_GT(sent, 1);
  ASSERT_EQ(ReceivePacket(here_.get(), Wait::kNo, &packet_), 0);
  EXPECT_EQ(SendPacket(there_.get(), Bytes(1000)), 0);
}

TEST_F(Wire, EndOfConnection) {
  there_.Reset();
  EXPECT_EQ(ReceivePacket(here_.get(), Wait::kYes, &packet_), ENOTCONN);
  EXPECT_EQ(SendPacket(here_.get(), Bytes(1)), EPIPE);
}

TEST_F(Wire, DeadPeerWithUnreadPackets) {
  ASSERT_EQ(SendPacket(here_.get(), Bytes(1)), 0);
  there_.Reset();
  int error = ReceivePacket(here_.get(), Wait::kNo, &packet_);
  EXPECT_TRUE(error == ECONNRESET || error == ENOTCONN) << error;
}

// A signal without SA_RESTART while waiting is not the caller's business.
TEST_F(Wire, SignalsDoNotInterrupt) {
  struct sigaction action = {}, old;
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &old), 0);
  pthread_t reader = pthread_self();
  std::thread other([&] {
    for (int i = 0; i < 5; ++i) {
      usleep(5000);
      pthread_kill(reader, SIGUSR1);
    }
    EXPECT_EQ(SendPacket(there_.get(), Bytes(4)), 0);
  });
  EXPECT_EQ(ReceivePacket(here_.get(), Wait::kYes, &packet_), 0);
  other.join();
  sigaction(SIGUSR1, &old, nullptr);
}

TEST(UniqueFd, OwnsOnce) {
  const size_t before = OpenFds();
  {
    UniqueFd a(open("/dev/null", O_RDONLY));
    UniqueFd b(std::move(a));
    // NOLINTNEXTLINE(bugprone-use-after-move,clang-analyzer-cplusplus.Move): that it is empty is the point
    EXPECT_FALSE(a.valid());
    a = std::move(b);
    EXPECT_TRUE(a.valid());
    int raw = a.Release();
    UniqueFd c(raw);
    EXPECT_EQ(OpenFds(), before + 1);
  }
  EXPECT_EQ(OpenFds(), before);
}

}  // namespace
}  // namespace ckptd
