#include "daemon/os/socket_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>

namespace ckptd {
namespace {

int OptionOf(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  (void)getsockopt(fd, level, name, &value, &size);
  return value;
}

bool ReadyFor(int fd, short events) {  // NOLINT(google-runtime-int): of poll
  pollfd ready{fd, events, 0};
  return poll(&ready, 1, 10'000) == 1;
}

TEST(SocketAddress, AsTextAndBack) {
  EXPECT_EQ(TextOf(ParseSocketAddress("10.0.0.7", 9466)->bytes), "10.0.0.7:9466");
  EXPECT_EQ(TextOf(ParseSocketAddress("::1", 1)->bytes), "[::1]:1");
  EXPECT_EQ(PortOf(ParseSocketAddress("::1", 65535)->bytes), 65535);
  for (const char* none : {"", "localhost", "10.0.0", "[::1]", "10.0.0.7:1"})
    EXPECT_FALSE(ParseSocketAddress(none, 1).ok()) << none;
}

TEST(SocketAddress, WhoConnectsIsConnectedAndMarked) {
  for (const char* host : {"127.0.0.1", ""}) {
    const absl::StatusOr<UniqueFd> listener = ListenTcp(host, 0, 8);
    ASSERT_TRUE(listener.ok()) << listener.status();
    const absl::StatusOr<uint16_t> port = LocalPort(listener->get());
    ASSERT_TRUE(port.ok() && *port != 0);
    const absl::StatusOr<UniqueFd> fd = StartConnect(*ParseSocketAddress("127.0.0.1", *port), 63);
    ASSERT_TRUE(fd.ok() && ReadyFor(fd->get(), POLLOUT)) << fd.status();
    EXPECT_TRUE(ConnectError(fd->get()).ok());
    EXPECT_TRUE(ReadyFor(listener->get(), POLLIN));
    EXPECT_EQ(OptionOf(fd->get(), IPPROTO_IP, IP_TOS), 63 << 2);
    EXPECT_EQ(OptionOf(listener->get(), IPPROTO_IP, IP_TOS), 8 << 2);
  }
}

TEST(SocketAddress, OfIPv6Too) {
  const absl::StatusOr<UniqueFd> listener = ListenTcp("::1", 0, 8);
  if (!listener.ok()) GTEST_SKIP() << "skipped: " << listener.status();
  EXPECT_EQ(OptionOf(listener->get(), IPPROTO_IPV6, IPV6_TCLASS), 8 << 2);
  const absl::StatusOr<UniqueFd> fd = StartConnect(*ParseSocketAddress("::1", *LocalPort(listener->get())), 0);
  ASSERT_TRUE(fd.ok() && ReadyFor(fd->get(), POLLOUT));
  EXPECT_TRUE(ConnectError(fd->get()).ok());
  EXPECT_EQ(OptionOf(fd->get(), IPPROTO_IPV6, IPV6_TCLASS), 0) << "nobody asked for a mark";
}

TEST(SocketAddress, WhereNobodyListensThatIsSaid) {
  absl::StatusOr<UniqueFd> listener = ListenTcp("127.0.0.1", 0, 0);
  ASSERT_TRUE(listener.ok());
  const uint16_t port = *LocalPort(listener->get());
  EXPECT_THAT(std::string(ListenTcp("127.0.0.1", port, 0).status().message()), testing::HasSubstr("bind"));
  listener->Reset();
  const absl::StatusOr<UniqueFd> fd = StartConnect(*ParseSocketAddress("127.0.0.1", port), 0);
  ASSERT_TRUE(fd.ok() && ReadyFor(fd->get(), POLLOUT));
  EXPECT_THAT(std::string(ConnectError(fd->get()).message()), testing::HasSubstr("refused"));
}

}  // namespace
}  // namespace ckptd
