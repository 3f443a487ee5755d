// Snapshots move between two agents on this machine, their bytes over UCX: what is agreed on by gRPC, who gets in, and
// what happens where only one of the two has it.
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
#include "daemon/os/testing/temp_dir.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/move_frame.h"
#include "daemon/transport/testing/authority.h"
#include "daemon/transport/testing/moving.h"
#include "daemon/transport/testing/raw_move.h"
#include "daemon/transport/testing/raw_peer.h"
#include "daemon/transport/testing/test_holder.h"
#include "daemon/transport/testing/test_node.h"
#include "daemon/transport/ucx/ucx_pair.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr size_t kImage = size_t{48} << 20;

// A port of UCX where nobody listens.
class DeadPort final : public BulkPort {
 public:
  void Serve(Came) override {}
  [[nodiscard]] uint16_t port() const override { return 1; }
  [[nodiscard]] BulkWay way() const override { return BulkWay::kUcx; }
  void Dial(const BulkAddress&, std::string, Nanos, Opened) override { std::abort(); }
};

// Connections that are answered, and end.
class VainPort final : public BulkPort {
 public:
  void Serve(Came) override {}
  [[nodiscard]] uint16_t port() const override { return 1; }
  [[nodiscard]] BulkWay way() const override { return BulkWay::kUcx; }
  void Dial(const BulkAddress&, std::string, Nanos, Opened opened) override {
    ++dialled;
    const auto [a, b] = FakeBulk::Connect();
    b->Close(absl::OkStatus());
    opened(OpenedBulk{a, MakeAnswer({kTestCluster, "b", "b-agent", 1, 78}, kNewestProtocol).SerializeAsString()});
  }
  std::atomic<int> dialled{0};
};

class CopiesUcxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static const std::string why = WhyNoUcx();
    if (!why.empty()) GTEST_SKIP() << "skipped: " << why;
    of_[0] = MustOpenUcx();
    of_[1] = MustOpenUcx(milliseconds(500));
  }
  void Start(BulkPort* of_a, BulkPort* of_b, const TlsOptions& tls_a = kPlain, const TlsOptions& tls_b = kPlain) {
    TestNode::Options a;
    a.name = "a";
    a.bulk = of_a;
    a.tls = tls_a;
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

  // What GrpcCopies would not do: an offer by gRPC, then any first frame over UCX. What the other end says to it.
  std::string TokenFor(uint32_t rank, uint64_t bytes) {
    RawCaller caller(b_->address(), {});
    v1::OfferRequest offer = OfferOf(rank, bytes);
    *offer.mutable_from() = FromA();
    v1::OfferResponse response;
    EXPECT_TRUE(RawOffer(caller.channel(), offer, &response).ok());
    EXPECT_EQ(response.ucx_port(), of_[1]->port());
    return response.token();
  }
  static v1::HelloRequest FromA() { return MakeHello({kTestCluster, "a", "a-agent", 1, 77}, "b"); }
  static std::string FirstOf(const std::string& token, uint32_t rank, uint64_t bytes, const std::string& peer = "a") {
    v1::MoveHello hello;
    *hello.mutable_from() = FromA();
    hello.set_transfer(EncodeHello({*TokenOf(token), NameOfCopy(peer, rank), bytes, kTestChunk}));
    return hello.SerializeAsString();
  }
  absl::StatusOr<OpenedBulk> Dial(const std::string& first) {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::StatusOr<OpenedBulk>> result;
    of_[0]->Dial({"b", "127.0.0.1", of_[1]->port()}, first, seconds(10), [&](const absl::StatusOr<OpenedBulk>& opened) {
      MutexLock lock(mutex);
      result = opened;
      changed.NotifyAll();
    });
    MutexLock lock(mutex);
    while (!result) changed.Wait(mutex);
    return *result;
  }

  static inline const TlsOptions kPlain{TlsMode::kPlaintextOnLoopback, "", "", ""};
  std::unique_ptr<UcxPort> of_[2];
  DeadPort dead_;
  VainPort vain_;
  TestHolder holder_;
  std::optional<TestNode> a_;
  std::optional<TestNode> b_;
};

TEST_F(CopiesUcxTest, WhereBothHaveItTheBytesGoOverIt) {
  Start(of_[0].get(), of_[1].get());
  ExpectItMoves();
  EXPECT_EQ(of_[1]->made(), 2U);
}

TEST_F(CopiesUcxTest, UnderMutualTlsToo) {
  if (!HaveOpenssl()) GTEST_SKIP() << "skipped: no " << kOpenssl << " (package openssl)";
  const TempDir dir;
  const Authority ca(dir.path(), "ca");
  for (const char* name : {"a", "b"}) ca.Issue(name, absl::StrCat("URI:spiffe://", kTestCluster, "/ckptd/", name));
  Start(of_[0].get(), of_[1].get(), ca.Tls("a"), ca.Tls("b"));
  ExpectItMoves();
  EXPECT_EQ(of_[1]->made(), 2U);
}

TEST_F(CopiesUcxTest, WhereOneHasItNotGrpcCarriesThem) {
  for (const bool sender_has_it : {true, false}) {
    Start(sender_has_it ? of_[0].get() : nullptr, sender_has_it ? nullptr : of_[1].get());
    ExpectItMoves();
    EXPECT_EQ(of_[0]->made() + of_[1]->made(), 0U);
    a_.reset();
    b_.reset();
    holder_.Put(3, std::string(kImage, '~'));
  }
}

TEST_F(CopiesUcxTest, WhereNoConnectionIsToBeHadGrpcCarriesThem) {
  Start(of_[0].get(), &dead_);
  ExpectItMoves();
  EXPECT_EQ(of_[0]->made(), 1U) << "the second did not try again";
}

TEST_F(CopiesUcxTest, WhereConnectionsBringNothingGrpcCarriesThem) {
  Start(&vain_, &dead_);
  ExpectItMoves();
  EXPECT_EQ(vain_.dialled, 1);
}

TEST_F(CopiesUcxTest, ATokenIsForOneConnectionOfOneTransferOfOnePeer) {
  Start(nullptr, of_[1].get());
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

TEST_F(CopiesUcxTest, AWrongHelloThatIsTooLongIsCutOff) {
  Start(nullptr, of_[1].get());
  EXPECT_FALSE(Dial(std::string(kMaxHelloFrame + 1, 'x')).ok());
  EXPECT_EQ(holder_.redeemed(), 0);
}

// Garbage on the sockets themselves: UCX's own matter, and no reason for the next transfer to fail.
TEST_F(CopiesUcxTest, AFloodOfGarbageIsSurvived) {
  Start(of_[0].get(), of_[1].get());
  std::mt19937_64 random(7);
  std::vector<UniqueFd> open;
  for (int i = 0; i < 100; ++i) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(of_[1]->port());
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    std::string bytes(random() % 4000, 0);
    for (char& byte : bytes) byte = static_cast<char>(random());
    (void)send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (i % 2 == 0) open.push_back(std::move(fd));
  }
  ExpectItMoves();
}

TEST_F(CopiesUcxTest, WhoeverIsCancelledIsToldAndNothingIsLeft) {
  Start(of_[0].get(), of_[1].get());
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
  of_[0].reset();
  of_[1].reset();
  EXPECT_LT(Now() - begin, seconds(5));
}

TEST_F(CopiesUcxTest, ManyAtOnce) {
  Start(of_[0].get(), of_[1].get());
  const std::string image = TestImage(8 * kTestChunk);
  std::vector<std::unique_ptr<Moving>> all;
  for (uint32_t rank = 0; rank < 8; ++rank) {
    all.push_back(std::make_unique<Moving>(*a_, "b", rank));
    all.back()->Send(image, {.deadline = Now() + seconds(60)});
  }
  for (auto& one : all) EXPECT_TRUE(one->Wait().ok()) << one->Wait();
  for (uint32_t rank = 0; rank < 8; ++rank) EXPECT_TRUE(holder_.Of(rank)->bytes == image);
}

}  // namespace
}  // namespace ckptd::transport
