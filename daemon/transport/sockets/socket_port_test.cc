// Two ports on this machine, of plain TCP and of TLS: what is said at one end of a connection comes to the other, and
// how it ends.
#include "daemon/transport/sockets/socket_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/socket_address.h"
#include "daemon/os/thread.h"
#include "daemon/transport/sockets/socket_ends.h"
#include "daemon/transport/sockets/tcp_pair.h"
#include "daemon/transport/tls/tls_pair.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

enum class Kind { kTcp, kTls };

class SocketPortTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (!Tls()) return;
    if (const std::string why = WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    nodes_.emplace();
    for (const char* node : {"a", "b"}) nodes_->Issue(node);
  }
  static bool Tls() { return GetParam() == Kind::kTls; }
  // Those of plain TCP are a part of them.
  [[nodiscard]] TlsPortOptions OptionsOf(const std::string& node) const {
    if (Tls()) return nodes_->OptionsOf(node);
    TlsPortOptions options;
    static_cast<SocketPortOptions&>(options) = TcpOptions();
    return options;
  }
  static absl::StatusOr<std::unique_ptr<SocketPort>> OpenOne(const TlsPortOptions& options) {
    return Tls() ? OpenTlsPort(PosixFiles(), options) : OpenTcpPort(options);
  }
  static std::unique_ptr<SocketPort> MustOpen(const TlsPortOptions& options) {
    return Tls() ? MustOpenTls(options) : MustOpenTcp(options);
  }
  void Open(const TlsPortOptions& of_a, const TlsPortOptions& of_b) {
    a_ = MustOpen(of_a);
    b_ = MustOpen(of_b);
    door_.emplace(*b_);
  }
  void Open() { Open(OptionsOf("a"), OptionsOf("b")); }
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
    std::optional<uint32_t> crc = end->Place(BytesOf(place));
    if (!crc) {
      const std::optional<Incoming> then = end.Next();
      if (!then || then->placed != place.size()) return "not placed";
      crc = then->crc;
    }
    return *crc == Crc32c(0, place.data(), place.size()) ? place : "summed wrongly";
  }

  std::optional<TlsNodes> nodes_;
  std::unique_ptr<SocketPort> a_, b_;
  std::optional<TestDoor> door_;
  TestEnd at_a_, at_b_;
};

TEST_P(SocketPortTest, FramesGoBothWaysInTheirOrder) {
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
TEST_P(SocketPortTest, MuchDataComesAsItIsAndWhoeverIsNotReadWaits) {
  TlsPortOptions of_a = OptionsOf("a");
  of_a.rekey_bytes = uint64_t{3} << 20;
  Open(of_a, OptionsOf("b"));
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

TEST_P(SocketPortTest, DataThatNobodyTakesIsDropped) {
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

TEST_P(SocketPortTest, AnErrorOfTheSourceIsGivenBackAndNothingIsSent) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(CodeOf(at_a_->SendData(10, [](auto) { return Error(ErrorCode::CORRUPT, "short"); })), ErrorCode::CORRUPT);
  EXPECT_TRUE(at_a_->writable());
  at_a_->SendHeader({1, 1, 1, 1});
  const std::optional<Incoming> next = at_b_.Next();
  EXPECT_TRUE(next && next->header);
}

// A file of some bytes, of which `size` are sent from `offset` on.
class SentFile {
 public:
  explicit SentFile(const std::string& bytes) : fd_(memfd_create("sent", MFD_CLOEXEC)) {
    if (write(fd_.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  }
  [[nodiscard]] FilePlace From(uint64_t offset) const { return {fd_.get(), offset}; }
  void CutTo(off_t size) const {
    if (ftruncate(fd_.get(), size) != 0) std::abort();
  }

 private:
  const UniqueFd fd_;
};

TEST_P(SocketPortTest, BytesOfAFileComeFromWhereTheyLie) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(at_a_->sends_files(), !Tls());
  if (Tls()) return;
  std::string all(3 * kMaxPiece, 0);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>(i * 7 >> 8);
  const SentFile file(all);
  Thread sends("sends", [&, this] {
    for (const uint64_t offset : {uint64_t{1}, uint64_t{kMaxPiece}, uint64_t{2 * kMaxPiece}})
      if (!at_a_.UntilWritable() || !at_a_->SendFile(kMaxPiece, file.From(offset)).ok()) return;
    if (at_a_.UntilWritable()) at_a_->SendHeader({1, 1, 1, 1});
    (void)at_a_.UntilWritable();
  });
  for (const uint64_t offset : {uint64_t{1}, uint64_t{kMaxPiece}, uint64_t{2 * kMaxPiece}})
    EXPECT_TRUE(Placed(at_b_) == all.substr(offset, kMaxPiece)) << offset;
  const std::optional<Incoming> next = at_b_.Next();
  EXPECT_TRUE(next && next->header);
}

TEST_P(SocketPortTest, AFileThatIsTooShortIsSaidBeforeAnythingIsSent) {
  if (Tls()) return;
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  const SentFile file(std::string(1000, 'x'));
  EXPECT_EQ(CodeOf(at_a_->SendFile(1000, file.From(1))), ErrorCode::CORRUPT);
  EXPECT_FALSE(at_a_->SendFile(1, {-1, 0}).ok());
  ASSERT_TRUE(at_a_->writable());
  ASSERT_TRUE(at_a_->SendFile(1000, file.From(0)).ok());
  EXPECT_EQ(Placed(at_b_), std::string(1000, 'x'));
}

// While the other end does not read: what is missing cannot be made up for, so the connection ends.
TEST_P(SocketPortTest, AFileThatIsCutShortOnItsWayEndsTheConnection) {
  if (Tls()) return;
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  const SentFile file(std::string(kMaxPiece, 'x'));
  while (at_a_->writable()) ASSERT_TRUE(at_a_->SendFile(kMaxPiece, file.From(0)).ok());
  file.CutTo(0);
  Thread reads("reads", [this] {
    std::string place(kMaxPiece, '~');
    while (const std::optional<Incoming> came = at_b_.Next()) {
      if (came->data != 0) (void)at_b_->Place(BytesOf(place));
    }
  });
  EXPECT_FALSE(at_a_.Next());
  EXPECT_EQ(CodeOf(at_a_.error()), ErrorCode::CORRUPT) << at_a_.error();
  EXPECT_FALSE(at_a_->writable());
}

TEST_P(SocketPortTest, OneEndIsDoneAndTheOtherGoesOn) {
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
TEST_P(SocketPortTest, ACutInTheMiddleIsAnEnd) {
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
    if (came->data != 0) whole = at_b_->Place(BytesOf(place)).has_value();
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

TEST_P(SocketPortTest, WhoeverLetsGoCloses) {
  Open();
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_EQ(b_->guests(), 1U);
  at_a_.LetGo();
  EXPECT_FALSE(at_b_.Next());
  EXPECT_TRUE(at_b_->ended());
  at_b_.LetGo();
  EXPECT_EQ(b_->guests(), 0U);
}

TEST_P(SocketPortTest, WhoeverIsRefusedHearsWhy) {
  Open();
  b_->Serve([](const std::shared_ptr<BulkGuest>& guest, const std::string&) {
    guest->Refuse(Error(ErrorCode::PERMISSION, "no such token"));
    guest->Close(absl::OkStatus());
  });
  const auto opened = DialNow(*a_, ToB(), "hello");
  EXPECT_EQ(CodeOf(opened.status()), ErrorCode::PERMISSION) << opened.status();
  EXPECT_THAT(opened.status().message(), HasSubstr("no such token"));
}

TEST_P(SocketPortTest, WhereNobodyServesOrListensThisWayIsNotOpen) {
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

TEST_P(SocketPortTest, APortThatIsTakenIsSaid) {
  Open();
  TlsPortOptions options = OptionsOf("a");
  options.port = b_->port();
  const auto second = OpenOne(options);
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

TEST_P(SocketPortTest, PacketsAreMarkedWhereTheOperatorSaysSo) {
  TlsPortOptions of_a = OptionsOf("a");
  TlsPortOptions of_b = OptionsOf("b");
  of_a.dscp = of_b.dscp = 8;  // CS1, lower effort
  Open(of_a, of_b);
  ASSERT_NO_FATAL_FAILURE(Connect());
  EXPECT_THAT(MarksAt(b_->port()), ::testing::ElementsAre(8 << 2, 8 << 2, 8 << 2));
}

TEST_P(SocketPortTest, APortThatGoesWaitsForNobody) {
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

INSTANTIATE_TEST_SUITE_P(Of, SocketPortTest, ::testing::Values(Kind::kTcp, Kind::kTls),
                         [](const auto& kind) { return kind.param == Kind::kTls ? "Tls" : "Tcp"; });

}  // namespace
}  // namespace ckptd::transport
