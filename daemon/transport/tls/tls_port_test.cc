// Two ports of TLS on this machine: what is said at one end of a connection comes to the other, and how it ends.
#include "daemon/transport/tls/tls_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/socket_address.h"
#include "daemon/os/thread.h"
#include "daemon/transport/tls/tls_ends.h"
#include "daemon/transport/tls/tls_pair.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class TlsPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    nodes_.emplace();
    for (const char* node : {"a", "b"}) nodes_->Issue(node);
  }
  void Open(TlsPortOptions of_a, TlsPortOptions of_b) {
    a_ = MustOpenTls(of_a);
    b_ = MustOpenTls(of_b);
    door_.emplace(*b_);
  }
  void Open() { Open(nodes_->OptionsOf("a"), nodes_->OptionsOf("b")); }
  [[nodiscard]] BulkAddress ToB() const { return {"b", "127.0.0.1", b_->port()}; }
  void Connect() {
    auto opened = DialNow(*a_, ToB(), "hello");
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(opened->answer, "answer to hello");
    const auto guest = door_->Next();
    ASSERT_TRUE(guest);
    at_a_ = TestEnd(std::move(opened->stream));
    at_b_ = TestEnd(guest);
  }
  static std::span<std::byte> BytesOf(std::string& text) { return std::as_writable_bytes(std::span(text)); }
  static absl::Status Give(BulkStream& stream, const std::string& data) {
    return stream.SendData(data.size(), [&](std::span<std::byte> into) {
      std::memcpy(into.data(), data.data(), data.size());
      return absl::OkStatus();
    });
  }
  // The next data, in its place.
  static std::string Placed(TestEnd& end) {
    const std::optional<Incoming> came = end.Next();
    if (!came || came->data == 0) return "no data";
    std::string place(came->data, '~');
    if (end->Place(BytesOf(place))) return place;
    const std::optional<Incoming> then = end.Next();
    return then && then->placed == place.size() ? place : "not placed";
  }

  std::optional<TlsNodes> nodes_;
  std::unique_ptr<TlsPort> a_, b_;
  std::optional<TestDoor> door_;
  TestEnd at_a_, at_b_;
};

TEST_F(TlsPortTest, FramesGoBothWaysInTheirOrder) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  for (TestEnd* const from : {&at_a_, &at_b_}) {
    TestEnd& to = from == &at_a_ ? at_b_ : at_a_;
    (*from)->SendHeader({7, 2, 0xabcd, 1000});
    ASSERT_TRUE(from->UntilWritable());
    ASSERT_TRUE(Give(**from, std::string(1000, 'x')).ok());
    ASSERT_TRUE(from->UntilWritable());
    (*from)->Say(StopOf(Error(ErrorCode::FENCED, "a newer one")));
    const std::optional<Incoming> header = to.Next();
    ASSERT_TRUE(header && header->header);
    EXPECT_EQ(header->header->chunk, 7U);
    EXPECT_EQ(header->header->crc, 0xabcdU);
    EXPECT_EQ(Placed(to), std::string(1000, 'x'));
    const std::optional<Incoming> message = to.Next();
    ASSERT_TRUE(message && message->message);
    EXPECT_TRUE(std::holds_alternative<Stop>(*message->message));
  }
}

// Under a new key every few MiB.
TEST_F(TlsPortTest, MuchDataComesAsItIsAndWhoeverIsNotReadWaits) {
  TlsPortOptions of_a = nodes_->OptionsOf("a");
  of_a.rekey_bytes = uint64_t{3} << 20;
  Open(of_a, nodes_->OptionsOf("b"));
  ASSERT_NO_FATAL_FAILURE(Connect());
  constexpr int kPieces = 96;
  const auto piece = [](int i) {
    std::string data(kMaxPiece - static_cast<size_t>(i), static_cast<char>('a' + i % 26));
    data[data.size() / 2] = static_cast<char>(i);
    return data;
  };
  int sent = 0;
  while (at_a_->writable() && sent < kPieces) ASSERT_TRUE(Give(*at_a_, piece(sent++)).ok());
  ASSERT_LT(sent, kPieces) << "nobody reads, and still it takes more";
  Thread sends("sends", [&, this] {
    for (; sent < kPieces; ++sent) {
      if (!at_a_.UntilWritable() || !Give(*at_a_, piece(sent)).ok()) return;
    }
    if (at_a_.UntilWritable()) at_a_->EndWrites();
    (void)at_a_.Next();  // until the other end is done, too
  });
  for (int i = 0; i < kPieces; ++i) ASSERT_TRUE(Placed(at_b_) == piece(i)) << i;
  EXPECT_FALSE(at_b_.Next());
  EXPECT_TRUE(at_b_.error().ok()) << at_b_.error();
  EXPECT_TRUE(at_b_->ended());
  at_b_->Close(absl::OkStatus());
}

TEST_F(TlsPortTest, DataThatNobodyTakesIsDropped) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  ASSERT_TRUE(Give(*at_a_, std::string(300'000, 'x')).ok());
  ASSERT_TRUE(at_b_.Next());
  Thread sends("sends", [this] {
    if (at_a_.UntilWritable()) at_a_->SendHeader({1, 1, 1, 1});
    (void)at_a_.UntilWritable();
  });
  const std::optional<Incoming> next = at_b_.Next();
  EXPECT_TRUE(next && next->header);
}

TEST_F(TlsPortTest, AnErrorOfTheSourceIsGivenBackAndNothingIsSent) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(CodeOf(at_a_->SendData(10, [](auto) { return Error(ErrorCode::CORRUPT, "short"); })), ErrorCode::CORRUPT);
  EXPECT_TRUE(at_a_->writable());
  at_a_->SendHeader({1, 1, 1, 1});
  const std::optional<Incoming> next = at_b_.Next();
  EXPECT_TRUE(next && next->header);
}

TEST_F(TlsPortTest, OneEndIsDoneAndTheOtherGoesOn) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  at_a_->SendHeader({1, 1, 1, 1});
  ASSERT_TRUE(at_a_.UntilWritable());
  at_a_->EndWrites();
  EXPECT_FALSE(at_a_->writable());
  EXPECT_FALSE(at_a_->ended());
  EXPECT_FALSE(at_b_->ended()) << "what came was not taken";
  ASSERT_TRUE(at_b_.Next());
  EXPECT_FALSE(at_b_.Next());
  EXPECT_TRUE(at_b_->ended());
  ASSERT_TRUE(at_b_.UntilWritable());
  ASSERT_TRUE(Give(*at_b_, "after the other's end").ok());
  EXPECT_EQ(Placed(at_a_), "after the other's end");
  at_b_->EndWrites();
  EXPECT_FALSE(at_a_.Next());
  EXPECT_TRUE(at_a_->ended());
  EXPECT_TRUE(at_a_.error().ok()) << at_a_.error();
}

// Within a piece: it never gets whole, and its place is nobody's any more.
TEST_F(TlsPortTest, ACutInTheMiddleIsAnEnd) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  const std::string data(kMaxPiece, 'x');
  while (at_a_->writable()) ASSERT_TRUE(Give(*at_a_, data).ok());
  at_a_->Close(absl::OkStatus());
  EXPECT_TRUE(at_a_->quiet());
  EXPECT_FALSE(at_a_->writable());
  EXPECT_TRUE(at_a_->ended());
  std::string place(kMaxPiece, '~');
  bool whole = true;
  while (const std::optional<Incoming> came = at_b_.Next()) {
    if (came->data != 0) whole = at_b_->Place(BytesOf(place));
    if (came->placed != 0) whole = true;
  }
  EXPECT_FALSE(whole);
  EXPECT_TRUE(at_b_->ended());
  at_b_->Close(absl::OkStatus());
  EXPECT_TRUE(at_b_->quiet());
  place.assign(kMaxPiece, '~');
  EXPECT_FALSE(at_b_.Next());
  EXPECT_EQ(place, std::string(kMaxPiece, '~'));
}

TEST_F(TlsPortTest, WhoeverLetsGoCloses) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(b_->guests(), 1U);
  at_a_.LetGo();
  EXPECT_FALSE(at_b_.Next());
  EXPECT_TRUE(at_b_->ended());
  at_b_.LetGo();
  EXPECT_EQ(b_->guests(), 0U);
}

TEST_F(TlsPortTest, WhoeverIsRefusedHearsWhy) {
  Open();
  b_->Serve([](const std::shared_ptr<BulkGuest>& guest, const std::string&) {
    guest->Refuse(Error(ErrorCode::PERMISSION, "no such token"));
    guest->Close(absl::OkStatus());
  });
  const auto opened = DialNow(*a_, ToB(), "hello");
  EXPECT_EQ(CodeOf(opened.status()), ErrorCode::PERMISSION) << opened.status();
  EXPECT_THAT(opened.status().message(), HasSubstr("no such token"));
}

TEST_F(TlsPortTest, WhereNobodyServesOrListensThisWayIsNotOpen) {
  Open();
  b_->Serve(nullptr);
  EXPECT_EQ(CodeOf(DialNow(*a_, ToB(), "hello").status()), ErrorCode::AGENT_UNREACHABLE);
  const BulkAddress at_b = ToB();
  door_.reset();
  b_.reset();
  EXPECT_EQ(CodeOf(DialNow(*a_, at_b, "hello").status()), ErrorCode::AGENT_UNREACHABLE);
  EXPECT_FALSE(DialNow(*a_, {"b", "no address", 1}, "hello").ok());
  const UniqueFd silent = *ListenTcp("127.0.0.1", 0, 0);
  const uint16_t at = *LocalPort(silent.get());
  EXPECT_EQ(CodeOf(DialNow(*a_, {"b", "127.0.0.1", at}, "hello", milliseconds(200)).status()), ErrorCode::TIMEOUT);
}

TEST_F(TlsPortTest, APortThatIsTakenIsSaid) {
  Open();
  TlsPortOptions options = nodes_->OptionsOf("a");
  options.port = b_->port();
  const auto second = TlsPort::Open(PosixFiles(), options);
  EXPECT_EQ(CodeOf(second.status()), ErrorCode::REFUSED);
  EXPECT_THAT(second.status().message(), HasSubstr("peers.bulk_port"));
}

// Of this process, of connections to and from `port`, and of its listener.
std::vector<int> MarksAt(uint16_t port) {
  std::vector<int> marks;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &fd)) continue;
    SocketAddress here;
    SocketAddress there;
    here.size = there.size = sizeof here.bytes;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&here.bytes), &here.size) != 0) continue;
    (void)getpeername(fd, reinterpret_cast<sockaddr*>(&there.bytes), &there.size);
    if (here.bytes.ss_family != AF_INET || (PortOf(here.bytes) != port && PortOf(there.bytes) != port)) continue;
    int mark = -1;
    socklen_t size = sizeof mark;
    (void)getsockopt(fd, IPPROTO_IP, IP_TOS, &mark, &size);
    marks.push_back(mark);
  }
  return marks;
}

TEST_F(TlsPortTest, PacketsAreMarkedWhereTheOperatorSaysSo) {
  TlsPortOptions of_a = nodes_->OptionsOf("a");
  TlsPortOptions of_b = nodes_->OptionsOf("b");
  of_a.dscp = of_b.dscp = 8;  // CS1, lower effort
  Open(of_a, of_b);
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_THAT(MarksAt(b_->port()), ::testing::ElementsAre(8 << 2, 8 << 2, 8 << 2));
}

TEST_F(TlsPortTest, APortThatGoesWaitsForNobody) {
  Open();
  const UniqueFd silent = *ListenTcp("127.0.0.1", 0, 0);
  const uint16_t at = *LocalPort(silent.get());
  const auto told = std::make_shared<std::atomic<int>>(0);
  a_->Dial({"b", "127.0.0.1", at}, "hello", seconds(60), [told](const absl::StatusOr<OpenedBulk>& opened) {
    if (CodeOf(opened.status()) == ErrorCode::CANCELLED) ++*told;
  });
  ASSERT_NO_FATAL_FAILURE(Connect());
  at_a_.LetGo();
  at_b_.LetGo();
  const Nanos begin = SystemClock().Monotonic();
  door_.reset();
  a_.reset();
  b_.reset();
  EXPECT_LT(SystemClock().Monotonic() - begin, seconds(5));
  EXPECT_EQ(*told, 1);
}

}  // namespace
}  // namespace ckptd::transport
