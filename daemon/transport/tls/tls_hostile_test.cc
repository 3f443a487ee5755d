// What strangers, and members that keep no rules, may send to a port of TLS: they are cut off, nothing of it is told to
// anybody, they cost nothing that lasts, and the port goes on.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/socket_address.h"
#include "daemon/os/thread.h"
#include "daemon/transport/move_frame.h"
#include "daemon/transport/sockets/socket_ends.h"
#include "daemon/transport/tls/openssl_handles.h"
#include "daemon/transport/tls/tls_identity.h"
#include "daemon/transport/tls/tls_pair.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kPatienceMs = 20'000;

UniqueFd Knock(uint16_t port) {
  UniqueFd fd = *StartConnect(*ParseSocketAddress("127.0.0.1", port), 0);
  pollfd ready{fd.get(), POLLOUT, 0};
  if (poll(&ready, 1, kPatienceMs) != 1) std::abort();
  return fd;
}

bool HungUpOn(int fd) {
  char byte = 0;
  for (pollfd ready{fd, POLLIN, 0}; poll(&ready, 1, kPatienceMs) == 1;) {
    if (recv(fd, &byte, 1, 0) <= 0) return true;
  }
  return false;
}

// TLS spoken by hand.
class RawTls {
 public:
  RawTls(uint16_t port, std::shared_ptr<SSL_CTX> context) : context_(std::move(context)), fd_(Knock(port)) {
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd_.get());
    SSL_set_connect_state(ssl_.get());
  }
  // What the handshake, the bytes and an answer come to: false when the other end hangs up in between.
  bool Answered(const std::string& bytes) {
    if (!Do([this] { return SSL_do_handshake(ssl_.get()); })) return false;
    if (!bytes.empty() && !Do([&] { return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())); }))
      return false;
    char byte = 0;
    return Do([&] { return SSL_read(ssl_.get(), &byte, 1); });
  }

 private:
  bool Do(const std::function<int()>& call) {
    for (;;) {
      const int result = call();
      if (result > 0) return true;
      const int error = SSL_get_error(ssl_.get(), result);
      pollfd ready{fd_.get(), static_cast<short>(error == SSL_ERROR_WANT_WRITE ? POLLOUT : POLLIN), 0};  // NOLINT
      if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return false;
      if (poll(&ready, 1, kPatienceMs) != 1) std::abort();
    }
  }
  const std::shared_ptr<SSL_CTX> context_;
  const UniqueFd fd_;
  SslPtr ssl_;
};

class TlsHostileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    nodes_.emplace();
    for (const char* node : {"a", "b"}) nodes_->Issue(node);
    Open([](TlsPortOptions&) {});
  }
  void Open(const std::function<void(TlsPortOptions&)>& change) {
    door_.reset();
    TlsPortOptions options = nodes_->OptionsOf("b");
    change(options);
    b_ = MustOpenTls(options);
    door_.emplace(*b_);
    a_ = MustOpenTls(nodes_->OptionsOf("a"));
  }
  absl::StatusOr<OpenedBulk> Dial() { return DialNow(*a_, {"b", "127.0.0.1", b_->port()}, "hello"); }
  [[nodiscard]] std::shared_ptr<SSL_CTX> OfA() const {
    TlsIdentity identity(PosixFiles(), nodes_->ca().Tls("a"), Nanos(0));
    auto context = *identity.Current(Nanos(1));
    SSL_CTX_set_read_ahead(context.get(), 0);
    return context;
  }
  // And nobody else did.
  void ExpectAMemberGetsIn() {
    EXPECT_TRUE(Eventually([this] { return b_->strangers() == 0; }));
    EXPECT_EQ(door_->count(), 0U);
    EXPECT_TRUE(Dial().ok());
    EXPECT_EQ(door_->count(), 1U);
  }

  std::optional<TlsNodes> nodes_;
  std::unique_ptr<SocketPort> a_, b_;
  std::optional<TestDoor> door_;
};

TEST_F(TlsHostileTest, GarbageInsteadOfTls) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 100; ++i) {
    const UniqueFd fd = Knock(b_->port());
    std::string bytes(100 + random() % 4000, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (i % 2 == 0) bytes.replace(0, 3, "\x16\x03\x01");  // a handshake's record, or what begins like one
    bytes[3] = 0;                                         // of few bytes: no more is waited for
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_TRUE(HungUpOn(fd.get())) << i;
  }
  ExpectAMemberGetsIn();
}

TEST_F(TlsHostileTest, NoCertificateOrAnOlderTls) {
  const std::shared_ptr<SSL_CTX> nameless(SSL_CTX_new(TLS_method()), [](SSL_CTX* last) { SSL_CTX_free(last); });
  EXPECT_FALSE(RawTls(b_->port(), nameless).Answered("\x0a\x01x"));
  const auto older = OfA();
  SSL_CTX_set_min_proto_version(older.get(), TLS1_2_VERSION);
  SSL_CTX_set_max_proto_version(older.get(), TLS1_2_VERSION);
  EXPECT_FALSE(RawTls(b_->port(), older).Answered("\x0a\x01x"));
  ExpectAMemberGetsIn();
}

TEST_F(TlsHostileTest, AMemberThatBeginsOtherwise) {
  const auto context = OfA();
  const std::string too_long = FrameHead(FrameKind::kHello, kMaxHelloFrame + 1) + std::string(kMaxHelloFrame + 1, 'x');
  const std::string of_data = FrameHead(FrameKind::kData, 4) + "data";
  const std::string stop = Encode(StopOf(Error(ErrorCode::FENCED, "stop")));
  const std::string of_message = FrameHead(FrameKind::kMessage, stop.size()) + stop;
  for (const std::string& first : {too_long, of_data, of_message, std::string("GET / HTTP/1.1\r\n\r\n"),
                                   std::string("\x0a\x00", 2), std::string("\x0a\xff\xff\xff\xff\xff", 6)})
    EXPECT_FALSE(RawTls(b_->port(), context).Answered(first)) << first;
  ExpectAMemberGetsIn();
}

TEST_F(TlsHostileTest, AMemberThatSaysHelloAndThenNonsense) {
  const std::string hello = FrameHead(FrameKind::kHello, 5) + "hello";
  for (const std::string& then : {std::string("nonsense"), hello, FrameHead(FrameKind::kData, kMaxPiece + 1),
                                  FrameHead(FrameKind::kMessage, 3) + "\xff\xff\xff"}) {
    RawTls raw(b_->port(), OfA());
    ASSERT_TRUE(raw.Answered(hello + then));
    TestEnd end(door_->Next());
    EXPECT_FALSE(end.Next());
    EXPECT_EQ(CodeOf(end.error()), ErrorCode::PROTOCOL) << end.error();
  }
}

TEST_F(TlsHostileTest, SilentStrangersAreFewAndSoonForgotten) {
  Open([](TlsPortOptions& options) {
    options.most_strangers = 8;
    options.hello_patience = milliseconds(500);
  });
  std::vector<UniqueFd> open;
  for (int i = 0; i < 400; ++i) {
    open.push_back(Knock(b_->port()));
    EXPECT_LE(b_->strangers(), 8U);
  }
  EXPECT_TRUE(HungUpOn(open.front().get())) << "the oldest makes room";
  const auto member = Dial();
  EXPECT_TRUE(member.ok()) << member.status();
  EXPECT_TRUE(Eventually([this] { return b_->strangers() == 0; }));
  EXPECT_TRUE(HungUpOn(open.back().get())) << "its time is over";
  EXPECT_EQ(door_->count(), 1U);
}

// One that showed its certificate, and says no hello, has no more time.
TEST_F(TlsHostileTest, AMemberThatSaysNothing) {
  Open([](TlsPortOptions& options) { options.hello_patience = milliseconds(300); });
  EXPECT_FALSE(RawTls(b_->port(), OfA()).Answered(""));
  ExpectAMemberGetsIn();
}

// A guest counts until its stream is closed at this end, whatever the other end does.
TEST_F(TlsHostileTest, SoManyGuestsAndNoMore) {
  Open([](TlsPortOptions& options) { options.most_guests = 3; });
  std::vector<std::shared_ptr<BulkGuest>> guests;
  std::vector<OpenedBulk> dialled;
  for (int i = 0; i < 3; ++i) {
    auto opened = Dial();
    ASSERT_TRUE(opened.ok()) << opened.status();
    dialled.push_back(*std::move(opened));
    guests.push_back(door_->Next());
  }
  for (int i = 0; i < 5; ++i) EXPECT_EQ(CodeOf(Dial().status()), ErrorCode::BUSY);
  EXPECT_EQ(b_->guests(), 3U);
  dialled.clear();
  EXPECT_EQ(CodeOf(Dial().status()), ErrorCode::BUSY);
  guests.pop_back();
  EXPECT_EQ(b_->guests(), 2U);
  const auto opened = Dial();
  EXPECT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(CodeOf(Dial().status()), ErrorCode::BUSY);
}

// Keys are free to ask for, and each asking owes an answer: whoever never reads them is cut off.
TEST_F(TlsHostileTest, WhoeverAsksForKeysWithoutEndIsCutOff) {
  const auto context = OfA();
  const UniqueFd fd = Knock(b_->port());
  const SslPtr ssl(SSL_new(context.get()));
  SSL_set_fd(ssl.get(), fd.get());
  const int flags = fcntl(fd.get(), F_GETFL);
  ASSERT_EQ(fcntl(fd.get(), F_SETFL, flags & ~O_NONBLOCK), 0);
  ASSERT_EQ(SSL_connect(ssl.get()), 1);
  const std::string hello = FrameHead(FrameKind::kHello, 5) + "hello";
  ASSERT_GT(SSL_write(ssl.get(), hello.data(), static_cast<int>(hello.size())), 0);
  TestEnd end(door_->Next());
  Thread asks("asks", [&] {
    while (SSL_key_update(ssl.get(), SSL_KEY_UPDATE_REQUESTED) == 1 && SSL_do_handshake(ssl.get()) == 1) {
    }
  });
  EXPECT_FALSE(end.Next());
  EXPECT_TRUE(end->ended());
  end->Close(absl::OkStatus());
}

}  // namespace
}  // namespace ckptd::transport
