// What strangers, and members that keep no rules, may send to a port of plain TCP: they are cut off, nothing of it is
// told to anybody, they cost nothing that lasts, and the port goes on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <random>

#include "daemon/base/errors.h"
#include "daemon/os/socket_address.h"
#include "daemon/transport/move_frame.h"
#include "daemon/transport/sockets/socket_ends.h"
#include "daemon/transport/sockets/tcp_pair.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;

constexpr int kPatienceMs = 20'000;

class TcpHostileTest : public ::testing::Test {
 protected:
  TcpHostileTest() { Open(TcpOptions()); }
  void Open(const SocketPortOptions& options) {
    door_.reset();
    b_ = MustOpenTcp(options);
    door_.emplace(*b_);
    a_ = MustOpenTcp(TcpOptions());
  }
  absl::StatusOr<OpenedBulk> Dial() { return DialNow(*a_, {"b", "127.0.0.1", b_->port()}, "hello"); }
  // Connected, and these bytes are said.
  [[nodiscard]] UniqueFd Knock(const std::string& bytes) const {
    UniqueFd fd = *StartConnect(*ParseSocketAddress("127.0.0.1", b_->port()), 0);
    pollfd ready{fd.get(), POLLOUT, 0};
    if (poll(&ready, 1, kPatienceMs) != 1) std::abort();
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return fd;
  }
  // Sooner or later.
  static bool HungUpOn(const UniqueFd& fd) {
    char byte = 0;
    for (pollfd ready{fd.get(), POLLIN, 0}; poll(&ready, 1, kPatienceMs) == 1;) {
      if (recv(fd.get(), &byte, 1, 0) <= 0) return true;
    }
    return false;
  }
  // And nobody else did.
  void ExpectAMemberGetsIn() {
    EXPECT_TRUE(Eventually([this] { return b_->strangers() == 0; }));
    EXPECT_EQ(door_->count(), 0U);
    EXPECT_TRUE(Dial().ok());
    EXPECT_EQ(door_->count(), 1U);
  }

  std::unique_ptr<SocketPort> a_, b_;
  std::optional<TestDoor> door_;
};

TEST_F(TcpHostileTest, WhoeverBeginsWithoutHello) {
  const std::string too_long = FrameHead(FrameKind::kHello, kMaxHelloFrame + 1) + std::string(kMaxHelloFrame + 1, 'x');
  const std::string of_data = FrameHead(FrameKind::kData, 4) + "data";
  const std::string stop = Encode(StopOf(Error(ErrorCode::FENCED, "stop")));
  const std::string of_message = FrameHead(FrameKind::kMessage, stop.size()) + stop;
  for (const std::string& first : {too_long, of_data, of_message, std::string("GET / HTTP/1.1\r\n\r\n"),
                                   std::string("\x0a\x00", 2), std::string("\x0a\xff\xff\xff\xff\xff", 6)})
    EXPECT_TRUE(HungUpOn(Knock(first))) << first;
  ExpectAMemberGetsIn();
}

TEST_F(TcpHostileTest, Garbage) {
  Open([] {
    SocketPortOptions options = TcpOptions();
    options.hello_patience = milliseconds(300);  // what begins like a hello may want more
    return options;
  }());
  std::mt19937_64 random(7);
  for (int i = 0; i < 100; ++i) {
    std::string bytes(100 + random() % 4000, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    bytes[0] = static_cast<char>(bytes[0] | 1);  // no frame begins so
    EXPECT_TRUE(HungUpOn(Knock(bytes))) << i;
  }
  ExpectAMemberGetsIn();
}

TEST_F(TcpHostileTest, WhoeverSaysHelloAndThenNonsense) {
  const std::string hello = FrameHead(FrameKind::kHello, 5) + "hello";
  for (const std::string& then : {std::string("nonsense"), hello, FrameHead(FrameKind::kData, kMaxPiece + 1),
                                  FrameHead(FrameKind::kMessage, 3) + "\xff\xff\xff"}) {
    const UniqueFd raw = Knock(hello + then);
    TestEnd end(door_->Next());
    EXPECT_FALSE(end.Next());
    EXPECT_EQ(CodeOf(end.error()), ErrorCode::PROTOCOL) << end.error();
  }
}

TEST_F(TcpHostileTest, SilentStrangersAreFewAndSoonForgotten) {
  SocketPortOptions options = TcpOptions();
  options.most_strangers = 8;
  options.hello_patience = milliseconds(500);
  Open(options);
  std::vector<UniqueFd> open;
  for (int i = 0; i < 400; ++i) {
    open.push_back(Knock(""));
    EXPECT_LE(b_->strangers(), 8U);
  }
  EXPECT_TRUE(HungUpOn(open.front())) << "the oldest makes room";
  const auto member = Dial();
  EXPECT_TRUE(member.ok()) << member.status();
  EXPECT_TRUE(Eventually([this] { return b_->strangers() == 0; }));
  EXPECT_TRUE(HungUpOn(open.back())) << "its time is over";
  EXPECT_EQ(door_->count(), 1U);
}

// A guest counts until its stream is closed at this end, whatever the other end does.
TEST_F(TcpHostileTest, SoManyGuestsAndNoMore) {
  SocketPortOptions options = TcpOptions();
  options.most_guests = 2;
  Open(options);
  std::vector<std::shared_ptr<BulkGuest>> guests;
  std::vector<OpenedBulk> dialled;
  for (int i = 0; i < 2; ++i) {
    auto opened = Dial();
    ASSERT_TRUE(opened.ok()) << opened.status();
    dialled.push_back(*std::move(opened));
    guests.push_back(door_->Next());
  }
  EXPECT_EQ(CodeOf(Dial().status()), ErrorCode::BUSY);
  dialled.clear();
  EXPECT_EQ(CodeOf(Dial().status()), ErrorCode::BUSY);
  guests.pop_back();
  EXPECT_TRUE(Dial().ok());
}

}  // namespace
}  // namespace ckptd::transport
