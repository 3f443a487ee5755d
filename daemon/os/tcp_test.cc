#include "daemon/os/tcp.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <ctime>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/os/process_stats.h"

namespace ckptd {
namespace {

UniqueFd Connect(uint16_t port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

void WaitFor(int fd, short events) {
  pollfd entry{fd, events, 0};
  ASSERT_EQ(poll(&entry, 1, 5000), 1);
}

TEST(Tcp, TalksBothWays) {
  auto listener = TcpListener::Listen("127.0.0.1:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_FALSE(listener->Accept()->has_value());
  UniqueFd client = Connect(listener->port());
  WaitFor(listener->fd(), POLLIN);
  auto accepted = listener->Accept();
  ASSERT_TRUE(accepted.ok() && accepted->has_value());
  int server = (*accepted)->get();

  char buffer[8];
  EXPECT_FALSE(ReadStream(server, buffer, sizeof(buffer))->has_value()) << "nothing yet";
  ASSERT_EQ(write(client.get(), "ask", 3), 3);
  WaitFor(server, POLLIN);
  ASSERT_EQ(**ReadStream(server, buffer, sizeof(buffer)), 3U);
  EXPECT_EQ(*WriteStream(server, "say"), 3U);
  ASSERT_EQ(read(client.get(), buffer, sizeof(buffer)), 3);
  client.Reset();
  WaitFor(server, POLLIN);
  EXPECT_EQ(**ReadStream(server, buffer, sizeof(buffer)), 0U) << "end";
}

TEST(Tcp, AFullSocketTakesNothing) {
  auto listener = TcpListener::Listen("127.0.0.1:0");
  UniqueFd client = Connect(listener->port());
  WaitFor(listener->fd(), POLLIN);
  UniqueFd server = std::move(**listener->Accept());
  std::string much(1 << 20, 'x');
  for (int i = 0; i < 1000; ++i) {
    auto taken = WriteStream(server.get(), much);
    ASSERT_TRUE(taken.ok());
    if (*taken == 0) return;
  }
  FAIL() << "took a gigabyte";
}

TEST(Tcp, OnlyLoopback) {
  for (const char* bad : {"0.0.0.0:1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "::1:5", "localhost:1", ":1", ""})
    EXPECT_EQ(CodeOf(TcpListener::Listen(bad).status()), ErrorCode::INVALID_ARGUMENT) << bad;
}

TEST(Tcp, ATakenPortIsAnError) {
  auto first = TcpListener::Listen("127.0.0.1:0");
  auto second = TcpListener::Listen(absl::StrCat("127.0.0.1:", first->port()));
  EXPECT_THAT(std::string(second.status().message()), ::testing::HasSubstr("bind 127.0.0.1:"));
}

TEST(ProcessStats, ArePlausible) {
  ProcessStats before = ReadProcessStats();
  EXPECT_GT(before.resident_bytes, 1'000'000U);
  EXPECT_NEAR(before.start_unix_seconds, static_cast<double>(time(nullptr)), 600);
  UniqueFd another(dup(0));
  ProcessStats after = ReadProcessStats();
  EXPECT_EQ(after.open_fds, before.open_fds + 1);
  EXPECT_GE(after.cpu_seconds, before.cpu_seconds);
  EXPECT_EQ(after.start_unix_seconds, before.start_unix_seconds);
}

}  // namespace
}  // namespace ckptd
