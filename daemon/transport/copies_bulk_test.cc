// Snapshots move between two agents on this machine, their bytes over TCP, TLS or UCX: what is agreed on by gRPC, who
// gets in, and what happens where only one of the two has it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/os/fd.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/move_frame.h"
#include "daemon/transport/sockets/socket_ends.h"
#include "daemon/transport/sockets/tcp_pair.h"
#include "daemon/transport/testing/moving.h"
#include "daemon/transport/testing/raw_move.h"
#include "daemon/transport/testing/raw_peer.h"
#include "daemon/transport/testing/test_holder.h"
#include "daemon/transport/testing/test_node.h"
#include "daemon/transport/tls/tls_pair.h"
#include "daemon/transport/ucx/ucx_pair.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr size_t kImage = size_t{24} << 20;

// A port where nobody listens.
class DeadPort : public BulkPort {
 public:
  explicit DeadPort(BulkWay way) : way_(way) {}
  void Serve(Came) override {}
  [[nodiscard]] uint16_t port() const override { return 1; }
  [[nodiscard]] BulkWay way() const override { return way_; }
  void Dial(const BulkAddress&, std::string, Nanos, Opened) override { std::abort(); }

 private:
  const BulkWay way_;
};

// Connections that are answered, and end.
class VainPort final : public DeadPort {
 public:
  using DeadPort::DeadPort;
  void Dial(const BulkAddress&, std::string, Nanos, Opened opened) override {
    ++dialled;
    const auto [a, b] = FakeBulk::Connect();
    b->Close(absl::OkStatus());
    opened(OpenedBulk{a, MakeAnswer({kTestCluster, "b", "b-agent", 1, 78}, kNewestProtocol).SerializeAsString()});
  }
  std::atomic<int> dialled{0};
};

// A port of one of the ways.
struct AnyPort {
  std::unique_ptr<BulkPort> port;
  std::function<uint64_t()> made;
};

AnyPort OpenTls(const TlsNodes& nodes, const std::string& node, Nanos hello_patience) {
  TlsPortOptions options = nodes.OptionsOf(node);
  options.hello_patience = hello_patience;
  std::unique_ptr<SocketPort> port = MustOpenTls(options);
  SocketPort* const raw = port.get();
  return {std::move(port), [raw] { return raw->made(); }};
}

AnyPort OpenTcp(const TlsNodes&, const std::string&, Nanos hello_patience) {
  SocketPortOptions options = TcpOptions();
  options.hello_patience = hello_patience;
  std::unique_ptr<SocketPort> port = MustOpenTcp(options);
  SocketPort* const raw = port.get();
  return {std::move(port), [raw] { return raw->made(); }};
}

AnyPort OpenUcx(const TlsNodes&, const std::string&, Nanos hello_patience) {
  std::unique_ptr<UcxPort> port = MustOpenUcx(hello_patience);
  UcxPort* const raw = port.get();
  return {std::move(port), [raw] { return raw->made(); }};
}

struct Way {
  const char* name;
  BulkWay way;
  std::string (*why_not)();
  AnyPort (*open)(const TlsNodes& nodes, const std::string& node, Nanos hello_patience);
  bool certificates;  // at gRPC
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class CopiesBulkTest : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    if (const std::string why = GetParam().why_not(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    nodes_.emplace();
    for (const char* node : {"a", "b", "c"}) nodes_->Issue(node);
    of_[0] = GetParam().open(*nodes_, "a", seconds(5));
    of_[1] = GetParam().open(*nodes_, "b", milliseconds(500));
  }
  [[nodiscard]] TlsOptions TlsOf(const std::string& node) const {
    return GetParam().certificates ? nodes_->ca().Tls(node) : TlsOptions{TlsMode::kPlaintextOnLoopback, "", "", ""};
  }
  void Start(BulkPort* of_a, BulkPort* of_b) { Start(of_a, of_b, TlsOf("a"), TlsOf("b")); }
  void Start(BulkPort* of_a, BulkPort* of_b, const TlsOptions& tls_a, const TlsOptions& tls_b) {
    TestNode::Options a;
    a.name = "a";
    a.bulk = of_a;
    a.tls = tls_a;
    a.measures = measures_;
    a_.emplace(a);
    TestNode::Options b;
    b.name = "b";
    b.bulk = of_b;
    b.tls = tls_b;
    b.copy_host = &holder_;
    b_.emplace(b);
    a_->SetPeers({b_->node()});
    b_->SetPeers({a_->node()});
  }
  // There and back again.
  void ExpectItMoves() {
    const std::string image = TestImage(kImage);
    Moving sending(*a_, "b", 3);
    sending.Send(image, {.deadline = Now() + seconds(60)});
    ASSERT_TRUE(sending.Wait().ok()) << sending.Wait();
    EXPECT_TRUE(holder_.Of(3)->bytes == image);
    EXPECT_THAT(holder_.Of(3)->verified, Each(1));
    std::string place;
    Moving receiving(*a_, "b", 3);
    receiving.Receive(place, {.deadline = Now() + seconds(60)});
    ASSERT_TRUE(receiving.Wait().ok()) << receiving.Wait();
    EXPECT_TRUE(place == image);
  }
  static Nanos Now() { return SystemClock().Monotonic(); }

  // What GrpcCopies would not do: an offer by gRPC, then any first frame. What the other end says to it.
  std::string TokenFor(uint32_t rank, uint64_t bytes) {
    RawIdentity shown;
    if (const TlsOptions tls = TlsOf("a"); !tls.ca.empty()) shown = {TextOf(tls.ca), TextOf(tls.cert), TextOf(tls.key)};
    RawCaller caller(b_->address(), shown);
    v1::OfferRequest offer = OfferOf(rank, bytes);
    *offer.mutable_from() = FromA();
    v1::OfferResponse response;
    EXPECT_TRUE(RawOffer(caller.channel(), offer, &response).ok());
    EXPECT_EQ(PortIn(response), of_[1].port->port());
    return response.token();
  }
  // What it said of this way.
  static uint32_t PortIn(const v1::OfferResponse& response) {
    if (GetParam().way == BulkWay::kTls) return response.tls_port();
    return GetParam().way == BulkWay::kTcp ? response.tcp_port() : response.ucx_port();
  }
  static v1::HelloRequest FromA() { return MakeHello({kTestCluster, "a", "a-agent", 1, 77}, "b"); }
  static std::string FirstOf(const std::string& token, uint32_t rank, uint64_t bytes, const std::string& peer = "a") {
    v1::MoveHello hello;
    *hello.mutable_from() = FromA();
    hello.set_transfer(EncodeHello({*TokenOf(token), NameOfCopy(peer, rank), bytes, kTestChunk}));
    return hello.SerializeAsString();
  }
  absl::StatusOr<OpenedBulk> Dial(const std::string& first) { return DialFrom(*of_[0].port, first); }
  absl::StatusOr<OpenedBulk> DialFrom(BulkPort& port, const std::string& first) {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::StatusOr<OpenedBulk>> result;
    port.Dial({"b", "127.0.0.1", of_[1].port->port()}, first, seconds(10),
              [&](const absl::StatusOr<OpenedBulk>& opened) {
                MutexLock lock(mutex);
                result = opened;
                changed.NotifyAll();
              });
    MutexLock lock(mutex);
    while (!result) changed.Wait(mutex);
    return *result;
  }

  std::optional<TlsNodes> nodes_;
  AnyPort of_[2];
  DeadPort dead_{GetParam().way};
  VainPort vain_{GetParam().way};
  TestHolder holder_;
  bool measures_ = false;
  std::optional<TestNode> a_;
  std::optional<TestNode> b_;
};

TEST_P(CopiesBulkTest, WhereBothHaveItTheBytesGoOverIt) {
  Start(of_[0].port.get(), of_[1].port.get());
  ExpectItMoves();
  EXPECT_EQ(of_[1].made(), 2U);
}

TEST_P(CopiesBulkTest, UnderMutualTlsToo) {
  Start(of_[0].port.get(), of_[1].port.get(), nodes_->ca().Tls("a"), nodes_->ca().Tls("b"));
  ExpectItMoves();
  EXPECT_EQ(of_[1].made(), 2U);
}

// The token alone is not enough where there are certificates: it must be its owner's that is shown.
TEST_P(CopiesBulkTest, AnothersCertificateDoesNotGoWithTheToken) {
  if (GetParam().way != BulkWay::kTls) GTEST_SKIP() << "skipped: no certificates on this way";
  Start(nullptr, of_[1].port.get());
  const AnyPort of_c = GetParam().open(*nodes_, "c", seconds(5));
  const std::string hello = FirstOf(TokenFor(1, kTestChunk), 1, kTestChunk);
  const absl::Status stolen = DialFrom(*of_c.port, hello).status();
  EXPECT_EQ(CodeOf(stolen), ErrorCode::PERMISSION) << stolen;
  EXPECT_THAT(stolen.message(), HasSubstr("spiffe://ml/ckptd/c, not for spiffe://ml/ckptd/a"));
  EXPECT_EQ(holder_.redeemed(), 0);
  EXPECT_TRUE(Dial(hello).ok()) << "it was not spent";
}

// peers.bulk = auto: both ways are tried, and one of them is taken from then on.
TEST_P(CopiesBulkTest, WhereItMeasuresEachWayIsTriedAndOneIsInUse) {
  measures_ = true;
  Start(of_[0].port.get(), of_[1].port.get());
  ExpectItMoves();
  EXPECT_EQ(of_[1].made(), 1U) << "the other one by gRPC";
  const auto speeds = [this] {
    std::vector<PathChoice::Speed> all;
    a_->Do([&] { all = a_->copies().Speeds(); });
    return all;
  };
  ASSERT_THAT(speeds(), SizeIs(2));
  holder_.Put(3, std::string(kImage, '~'));
  ExpectItMoves();
  const std::vector<PathChoice::Speed> after = speeds();
  ASSERT_THAT(after, SizeIs(2));
  EXPECT_EQ(after[0].way, GetParam().way);
  EXPECT_EQ(after[1].way, BulkWay::kGrpc);
  EXPECT_NE(after[0].in_use, after[1].in_use);
  EXPECT_EQ(of_[1].made(), after[0].in_use ? 3U : 1U);
  for (const PathChoice::Speed& speed : after) EXPECT_GT(speed.bytes_per_second, 0) << NameOf(speed.way);
  a_->SetPeers({});
  EXPECT_THAT(speeds(), SizeIs(0)) << "it left the membership";
}

TEST_P(CopiesBulkTest, WhereOneHasItNotGrpcCarriesThem) {
  for (const bool sender_has_it : {true, false}) {
    Start(sender_has_it ? of_[0].port.get() : nullptr, sender_has_it ? nullptr : of_[1].port.get());
    ExpectItMoves();
    EXPECT_EQ(of_[0].made() + of_[1].made(), 0U);
    a_.reset();
    b_.reset();
    holder_.Put(3, std::string(kImage, '~'));
  }
}

TEST_P(CopiesBulkTest, WhereNoConnectionIsToBeHadGrpcCarriesThem) {
  Start(of_[0].port.get(), &dead_);
  ExpectItMoves();
  EXPECT_EQ(of_[0].made(), 1U) << "the second did not try again";
}

TEST_P(CopiesBulkTest, WhereConnectionsBringNothingGrpcCarriesThem) {
  Start(&vain_, &dead_);
  ExpectItMoves();
  EXPECT_EQ(vain_.dialled, 1);
}

TEST_P(CopiesBulkTest, ATokenIsForOneConnectionOfOneTransferOfOnePeer) {
  Start(nullptr, of_[1].port.get());
  const auto code = [this](const std::string& first) { return CodeOf(Dial(first).status()); };
  const std::string token = TokenFor(1, kTestChunk);
  const std::string before = holder_.Of(1)->bytes;
  EXPECT_EQ(code(FirstOf(std::string(16, 'x'), 1, kTestChunk)), ErrorCode::PERMISSION) << "no token";
  EXPECT_EQ(code(FirstOf(token, 1, kTestChunk, "c")), ErrorCode::PERMISSION) << "in the name of another";
  EXPECT_EQ(code(FirstOf(token, 1, kTestChunk)), ErrorCode::OK);
  EXPECT_EQ(code(FirstOf(token, 1, kTestChunk)), ErrorCode::PERMISSION) << "twice";
  EXPECT_EQ(code(FirstOf(TokenFor(1, kTestChunk), 2, kTestChunk)), ErrorCode::PERMISSION) << "another rank";
  EXPECT_EQ(code(FirstOf(TokenFor(1, kTestChunk), 1, 2 * kTestChunk)), ErrorCode::PERMISSION) << "size";
  EXPECT_EQ(code("nonsense"), ErrorCode::PROTOCOL);
  holder_.token_life = Nanos(0);
  EXPECT_EQ(code(FirstOf(TokenFor(1, kTestChunk), 1, kTestChunk)), ErrorCode::PERMISSION) << "expired";
  EXPECT_THAT(Dial(FirstOf(token, 1, kTestChunk)).status().message(), HasSubstr("the other end stopped: "));
  EXPECT_EQ(holder_.Of(1)->bytes, before);
}

// The transfer before has failed, and waits a second for its other end: instead of an answer to Hello, which would make
// a connection in vain of it.
TEST_P(CopiesBulkTest, WhoeverBeginsAnewTooSoonIsToldToComeAgain) {
  Start(nullptr, of_[1].port.get());
  const auto failed = Dial(FirstOf(TokenFor(1, kTestChunk), 1, kTestChunk));
  ASSERT_TRUE(failed.ok()) << failed.status();
  TestEnd end(failed->stream);
  end->Say(Verified{0, 1});
  for (bool stopped = false; !stopped;) {
    const auto came = end.Next();
    ASSERT_TRUE(came.has_value()) << end.error();
    stopped = came->message && std::holds_alternative<Stop>(*came->message);
  }
  const Nanos begin = Now();
  const auto dial = [this] { return CodeOf(Dial(FirstOf(TokenFor(1, kTestChunk), 1, kTestChunk)).status()); };
  const ErrorCode first = dial();
  EXPECT_TRUE(first == ErrorCode::BUSY || Now() - begin > milliseconds(700)) << InfoOf(first).name;
  end->Close(absl::OkStatus());
  EXPECT_TRUE(Eventually([&] { return dial() == ErrorCode::OK; }));
}

TEST_P(CopiesBulkTest, AWrongHelloThatIsTooLongIsCutOff) {
  Start(nullptr, of_[1].port.get());
  EXPECT_FALSE(Dial(std::string(kMaxHelloFrame + 1, 'x')).ok());
  EXPECT_EQ(holder_.redeemed(), 0);
}

// Garbage on the sockets themselves is no reason for the next transfer to fail.
TEST_P(CopiesBulkTest, AFloodOfGarbageIsSurvived) {
  Start(of_[0].port.get(), of_[1].port.get());
  std::mt19937_64 random(7);
  std::vector<UniqueFd> open;
  for (int i = 0; i < 100; ++i) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(of_[1].port->port());
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    std::string bytes(random() % 4000, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 2 == 0) open.push_back(std::move(fd));
  }
  ExpectItMoves();
}

TEST_P(CopiesBulkTest, WhoeverIsCancelledIsToldAndNothingIsLeft) {
  Start(of_[0].port.get(), of_[1].port.get());
  const std::string image = TestImage(kImage);
  SenderLimits limits{.deadline = Now() + seconds(60)};
  limits.bytes_per_second = uint64_t{20} << 20;
  limits.burst = kTestChunk;
  {
    Moving moving(*a_, "b", 3);
    moving.Send(image, limits);
    ASSERT_TRUE(moving.UntilProgress(2 * kTestChunk));
    moving.move().Cancel();
    EXPECT_EQ(CodeOf(moving.Wait(seconds(5))), ErrorCode::CANCELLED) << moving.Wait();
    ASSERT_TRUE(holder_.UntilEnds(1));
    EXPECT_EQ(CodeOf(holder_.Ends()[0]), ErrorCode::CANCELLED) << holder_.Ends()[0];
  }
  auto moving = std::make_unique<Moving>(*a_, "b", 4);
  moving->Send(image, limits);
  ASSERT_TRUE(moving->UntilProgress(2 * kTestChunk));
  const Nanos begin = Now();
  b_.reset();
  moving.reset();
  a_.reset();
  of_[0].port.reset();
  of_[1].port.reset();
  EXPECT_LT(Now() - begin, seconds(5));
}

TEST_P(CopiesBulkTest, ManyAtOnce) {
  Start(of_[0].port.get(), of_[1].port.get());
  const std::string image = TestImage(8 * kTestChunk);
  std::vector<std::unique_ptr<Moving>> all;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    all.push_back(std::make_unique<Moving>(*a_, "b", rank));
    all.back()->Send(image, {.deadline = Now() + seconds(60)});
  }
  for (auto& one : all) EXPECT_TRUE(one->Wait().ok()) << one->Wait();
  for (uint32_t rank = 0; rank < 8; ++rank) EXPECT_TRUE(holder_.Of(rank)->bytes == image);
}

INSTANTIATE_TEST_SUITE_P(Over, CopiesBulkTest,
                         ::testing::Values(Way{"Tls", BulkWay::kTls, WhyNoTls, OpenTls, true},
                                           Way{"Tcp", BulkWay::kTcp, WhyNoTls, OpenTcp, true},
                                           Way{"Ucx", BulkWay::kUcx, WhyNoUcx, OpenUcx, false}),
                         [](const auto& way) { return std::string(way.param.name); });

}  // namespace
}  // namespace ckptd::transport
