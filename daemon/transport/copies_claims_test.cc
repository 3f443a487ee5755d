// What a bulk connection without certificates may claim: nothing. Nodes a and b are members of a list, so that their
// generations are what they claim; they prove their names by TLS at gRPC, and their copies go over plain TCP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_split.h"
#include "daemon/base/errors.h"
#include "daemon/membership/fixed_sources.h"
#include "daemon/membership/membership.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/sockets/socket_ends.h"
#include "daemon/transport/sockets/tcp_pair.h"
#include "daemon/transport/testing/moving.h"
#include "daemon/transport/testing/raw_move.h"
#include "daemon/transport/testing/raw_peer.h"
#include "daemon/transport/testing/test_holder.h"
#include "daemon/transport/testing/test_node.h"
#include "daemon/transport/tls/tls_pair.h"

namespace ckptd::transport {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kHighest = UINT64_MAX;

// Whoever dials reaches somebody who says that he is b, in his last life.
class UsurpedPort final : public BulkPort {
 public:
  void Serve(Came) override {}
  [[nodiscard]] uint16_t port() const override { return 1; }
  [[nodiscard]] BulkWay way() const override { return BulkWay::kTcp; }
  void Dial(const BulkAddress&, std::string, Nanos, Opened opened) override {
    const auto [a, b] = FakeBulk::Connect();
    b->Close(absl::OkStatus());
    opened(
        OpenedBulk{a, MakeAnswer({kTestCluster, "b", "b-agent", kHighest, 78}, kNewestProtocol).SerializeAsString()});
  }
};

class CopiesClaimsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoTls(); !why.empty()) GTEST_SKIP() << "skipped: " << why;
    nodes_.emplace();
    for (const char* node : {"a", "b"}) nodes_->Issue(node);
    of_a_ = MustOpenTcp(TcpOptions());
    of_b_ = MustOpenTcp(TcpOptions());
  }
  static std::unique_ptr<membership::Membership> Members(const std::string& self) {
    membership::Self node;
    node.name = self;
    node.port = 1;
    auto members = std::make_unique<membership::Membership>(SystemClock(), *membership::MakeStaticSource(node, "a; b"));
    EXPECT_TRUE(members->Start().ok());
    return members;
  }
  TestNode::Options OptionsOf(const std::string& name, membership::Membership& members, BulkPort* bulk) {
    TestNode::Options options;
    options.name = name;
    options.tls = nodes_->ca().Tls(name);
    options.bulk = bulk;
    options.copy_host = &holder_;
    options.admit = [&members](const std::string& peer, uint64_t generation) {
      return members.Admit(peer, generation);
    };
    options.would_admit = [&members](const std::string& peer, uint64_t generation) {
      return members.WouldAdmit(peer, generation);
    };
    return options;
  }
  void Start(BulkPort* of_a) {
    a_.emplace(OptionsOf("a", *members_of_a_, of_a));
    b_.emplace(OptionsOf("b", *members_of_b_, of_b_.get()));
    a_->SetPeers({b_->node()});
    b_->SetPeers({a_->node()});
  }
  // By gRPC, with a's certificate.
  absl::StatusOr<std::string> TokenFor(uint64_t generation) {
    RawCaller caller(b_->address(),
                     {TextOf(nodes_->ca().ca()), TextOf(nodes_->ca().cert("a")), TextOf(nodes_->ca().key("a"))});
    v1::OfferRequest offer = OfferOf(1, kTestChunk);
    *offer.mutable_from() = MakeHello({kTestCluster, "a", "a-agent", generation, 77}, "b");
    v1::OfferResponse response;
    const absl::Status offered = RawOffer(caller.channel(), offer, &response);
    if (!offered.ok()) return offered;
    return response.token();
  }
  absl::Status Knock(const v1::HelloRequest& from, const std::string& token = std::string(16, 'x')) {
    v1::MoveHello hello;
    *hello.mutable_from() = from;
    hello.set_transfer(EncodeHello({*TokenOf(token), NameOfCopy(from.member(), 1), kTestChunk, kTestChunk}));
    return DialNow(*of_a_, {"b", "127.0.0.1", of_b_->port()}, hello.SerializeAsString()).status();
  }
  static v1::HelloRequest FromA(uint64_t generation) {
    return MakeHello({kTestCluster, "a", "a-agent", generation, 77}, "b");
  }

  std::optional<TlsNodes> nodes_;
  const std::unique_ptr<membership::Membership> members_of_a_ = Members("a");
  const std::unique_ptr<membership::Membership> members_of_b_ = Members("b");
  std::unique_ptr<SocketPort> of_a_, of_b_;
  UsurpedPort usurped_;
  TestHolder holder_;
  std::optional<TestNode> a_, b_;
};

TEST_F(CopiesClaimsTest, WhoeverHasNoTokenFencesNobody) {
  Start(of_a_.get());
  EXPECT_EQ(CodeOf(Knock(FromA(kHighest))), ErrorCode::PERMISSION);
  const auto token = TokenFor(1);
  EXPECT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(holder_.redeemed(), 0);
}

// It was handed out to the generation that asked for it, and says nothing of another.
TEST_F(CopiesClaimsTest, NeitherDoesATokenProveAGeneration) {
  Start(of_a_.get());
  auto token = TokenFor(2);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_TRUE(Knock(FromA(kHighest), *token).ok());
  token = TokenFor(2);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(CodeOf(Knock(FromA(1), *token)), ErrorCode::PERMISSION) << "a's past";
  EXPECT_EQ(holder_.redeemed(), 1);
  EXPECT_EQ(CodeOf(TokenFor(1).status()), ErrorCode::FENCED);
}

TEST_F(CopiesClaimsTest, NorDoesWhoeverAnswersWithoutACertificate) {
  Start(&usurped_);
  const std::string image = TestImage(8 * kTestChunk);
  Moving moving(*a_, "b", 3);
  moving.Send(image, {.deadline = SystemClock().Monotonic() + seconds(60)});
  EXPECT_TRUE(moving.Wait().ok()) << moving.Wait();
  EXPECT_TRUE(holder_.Of(3)->bytes == image);
}

// Whatever is wrong, and however often.
TEST_F(CopiesClaimsTest, AStrangerIsToldNoNamesAndTheLogIsNotFlooded) {
  Start(of_a_.get());
  v1::HelloRequest abroad = FromA(1);
  abroad.set_cluster("guess");
  v1::HelloRequest elsewhere = FromA(1);
  elsewhere.set_to("guess");
  v1::HelloRequest nobody = FromA(1);
  nobody.set_member("guess");
  testing::internal::CaptureStderr();
  absl::Status told;
  for (int i = 0; i < 50; ++i) {
    for (const v1::HelloRequest& hello : {abroad, elsewhere, nobody}) {
      const absl::Status said = Knock(hello);
      if (told.ok()) told = said;
      EXPECT_EQ(said.message(), told.message());
      EXPECT_EQ(CodeOf(said), ErrorCode::PERMISSION);
    }
  }
  const std::vector<std::string> log = absl::StrSplit(testing::internal::GetCapturedStderr(), '\n');
  EXPECT_THAT(told.message(), HasSubstr("the log of this node says why"));
  EXPECT_THAT(told.message(), Not(HasSubstr("ml")));
  EXPECT_THAT(told.message(), Not(HasSubstr("node b")));
  const auto lines = std::count_if(log.begin(), log.end(),
                                   [](const std::string& line) { return line.find("peer.refused") != line.npos; });
  EXPECT_GE(lines, 1);
  EXPECT_LE(lines, 20) << "of 150";
  EXPECT_THAT(log, testing::Contains(HasSubstr("node a is of cluster guess, node b of ml")));
}

}  // namespace
}  // namespace ckptd::transport
