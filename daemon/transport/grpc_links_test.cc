// Links between agents of one machine, without TLS: how they come, break and come back, and what is refused.
#include "daemon/transport/grpc_links.h"

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/transport/testing/raw_peer.h"
#include "daemon/transport/testing/relay.h"
#include "daemon/transport/testing/test_node.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// gRPC's own threads end behind the last channel, by themselves.
class GrpcEnds final : public ::testing::Environment {
 public:
  void TearDown() override {
    grpc_init();
    grpc_shutdown_blocking();
  }
};
[[maybe_unused]] const auto* const kGrpcEnds = ::testing::AddGlobalTestEnvironment(new GrpcEnds);

TestNode::Options Named(const std::string& name) {
  TestNode::Options options;
  options.name = name;
  return options;
}

Card CardOf(const std::string& name, uint64_t incarnation = 7) {
  return {kTestCluster, name, name + "-agent", 1, incarnation};
}

int64_t MsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start).count();
}

class GrpcLinksTest : public ::testing::Test {
 protected:
  void Introduce() {
    a_.SetPeers({a_.node(), b_.node()});
    b_.SetPeers({a_.node(), b_.node()});
  }
  // A link from a to b that has carried something.
  void LinkUp(const std::string& address) {
    b_.SetPeers({a_.node()});
    a_.SetPeers({{"b", address}});
    ASSERT_TRUE(a_.SendFloor("b", "first", 1).ok());
    ASSERT_TRUE(b_.UntilReceived("a first 1"));
  }

  TestNode a_{Named("a")};
  TestNode b_{Named("b")};
};

TEST_F(GrpcLinksTest, WhatOneSaysTheOtherHears) {
  Introduce();
  ASSERT_TRUE(a_.SendFloor("b", "gpt", 5).ok());
  ASSERT_TRUE(b_.UntilReceived("a gpt 5"));
  auto report = std::make_shared<v1::Report>();
  report->set_job("gpt");
  report->set_agent(b_.agent());
  report->set_seq(9);
  ASSERT_TRUE(b_.Send("a", LinkMessage(std::move(report))).ok());
  ASSERT_TRUE(a_.UntilReceived("b gpt 9"));
  EXPECT_TRUE(a_.UntilCondition("b", [](const PeerCondition& b) { return b.connected && b.sent_messages == 1; }));
  const PeerCondition b = a_.Condition("b");
  EXPECT_EQ(b.agent, "b-agent");
  EXPECT_EQ(b.received_messages, 1U);
  EXPECT_GT(b.sent_bytes, 0U);
  EXPECT_GT(b.since, Nanos(0));
  EXPECT_TRUE(b.last_error.ok()) << b.last_error;
}

TEST_F(GrpcLinksTest, NobodyIsDialledWithoutAReason) {
  Introduce();
  EXPECT_FALSE(a_.UntilCondition(
      "b", [](const PeerCondition& b) { return b.connected || b.wanted; }, milliseconds(300)));
  EXPECT_EQ(CodeOf(a_.SendFloor("c", "gpt", 1)), ErrorCode::NOT_FOUND);
  EXPECT_EQ(CodeOf(a_.SendFloor("a", "gpt", 1)), ErrorCode::NOT_FOUND) << "not to itself";
}

TEST_F(GrpcLinksTest, ASlowReceiverDelaysNobodyAndHearsTheNewest) {
  Introduce();
  ASSERT_TRUE(a_.SendFloor("b", "first", 1).ok());
  ASSERT_TRUE(b_.UntilReceived("a first 1"));
  b_.Hold();
  constexpr uint64_t kLast = 400;
  int64_t slowest = 0;
  for (uint64_t floor = 1; floor <= kLast; ++floor) {
    const auto start = std::chrono::steady_clock::now();
    ASSERT_TRUE(a_.SendFloor("b", "gpt", floor, 256 << 10).ok());
    slowest = std::max(slowest, MsSince(start));
  }
  EXPECT_LT(slowest, 2000) << "ms; 100 MiB would not fit the sockets";
  EXPECT_TRUE(a_.UntilCondition("b", [](const PeerCondition& b) { return b.unsent_messages == 1; }));
  b_.LetGo();
  ASSERT_TRUE(b_.UntilReceived(absl::StrCat("a gpt ", kLast)));
  const PeerCondition b = a_.Condition("b");
  EXPECT_EQ(b.replaced_messages + b_.Received().size() - 1, kLast);
  EXPECT_GT(b.replaced_messages, kLast / 2);
  RecordProperty("replaced", static_cast<int>(b.replaced_messages));
  RecordProperty("slowest_send_ms", static_cast<int>(slowest));
}

TEST_F(GrpcLinksTest, APeerThatDiesAndComesBackIsLinkedAgain) {
  auto c = std::make_unique<TestNode>(Named("c"));
  const PeerNode node = c->node();
  const int port = std::stoi(node.address.substr(node.address.rfind(':') + 1));
  a_.SetPeers({node});
  c->SetPeers({a_.node()});
  ASSERT_TRUE(a_.SendFloor("c", "gpt", 1).ok());
  ASSERT_TRUE(c->UntilReceived("a gpt 1"));
  c.reset();
  ASSERT_TRUE(a_.UntilCondition("c", [](const PeerCondition& peer) { return !peer.connected; }));
  EXPECT_THAT(a_.Condition("c").last_error.message(), HasSubstr(absl::StrCat("node c at ", node.address)));
  for (uint64_t floor = 2; floor <= 9; ++floor) ASSERT_TRUE(a_.SendFloor("c", "gpt", floor).ok());
  TestNode::Options again = Named("c");
  again.port = port;
  TestNode back(again);
  back.SetPeers({a_.node()});
  ASSERT_TRUE(back.UntilReceived("a gpt 9"));
  EXPECT_THAT(back.Received(), ElementsAre("a gpt 9")) << "the newest only";
  EXPECT_EQ(a_.Condition("c").links, 2U);
}

TEST_F(GrpcLinksTest, APeerThatIsSilentIsGivenUpWithinTenSecondsAndFoundAgain) {
  const std::string address = b_.address();
  Relay relay(std::stoi(address.substr(address.rfind(':') + 1)));
  LinkUp(relay.address());
  const auto cut = std::chrono::steady_clock::now();
  relay.Freeze(true);
  ASSERT_TRUE(a_.UntilCondition(
      "b", [](const PeerCondition& b) { return !b.connected; }, seconds(20)));
  RecordProperty("given_up_after_ms", static_cast<int>(MsSince(cut)));
  EXPECT_LT(MsSince(cut), 10'000);
  ASSERT_TRUE(a_.SendFloor("b", "gpt", 2).ok());
  relay.Freeze(false);
  EXPECT_TRUE(b_.UntilReceived("a gpt 2"));
}

TEST_F(GrpcLinksTest, AnAgentThatLeavesWaitsForNoPeer) {
  const std::string address = b_.address();
  Relay relay(std::stoi(address.substr(address.rfind(':') + 1)));
  auto c = std::make_unique<TestNode>(Named("c"));
  b_.SetPeers({c->node()});
  c->SetPeers({{"b", relay.address()}});
  ASSERT_TRUE(c->SendFloor("b", "gpt", 1).ok());
  ASSERT_TRUE(b_.UntilReceived("c gpt 1"));
  relay.Freeze(true);
  ASSERT_TRUE(c->SendFloor("b", "gpt", 2, 8 << 20).ok());
  const auto start = std::chrono::steady_clock::now();
  c.reset();
  RecordProperty("left_after_ms", static_cast<int>(MsSince(start)));
  EXPECT_LT(MsSince(start), 7000) << "the silent socket is given up after 3 s";
}

TEST_F(GrpcLinksTest, WhoIsNoMemberAnyMoreIsCutOffBothWays) {
  Introduce();
  ASSERT_TRUE(a_.SendFloor("b", "gpt", 1).ok() && b_.SendFloor("a", "gpt", 1).ok());
  ASSERT_TRUE(b_.UntilReceived("a gpt 1") && a_.UntilReceived("b gpt 1"));
  a_.SetPeers({});
  EXPECT_EQ(CodeOf(a_.SendFloor("b", "gpt", 2)), ErrorCode::NOT_FOUND);
  ASSERT_TRUE(
      b_.UntilCondition("a", [](const PeerCondition& a) { return CodeOf(a.last_error) == ErrorCode::NOT_FOUND; }));
  EXPECT_THAT(b_.Condition("a").last_error.message(), HasSubstr("node b is not a member as node a knows them"));
  ASSERT_TRUE(b_.SendFloor("a", "gpt", 2).ok());
  a_.SetPeers({b_.node()});
  EXPECT_TRUE(a_.UntilReceived("b gpt 2")) << "and let in again";
}

TEST_F(GrpcLinksTest, WhoIsFencedIsCutOffAndComesBackWithAHigherGeneration) {
  Introduce();
  ASSERT_TRUE(b_.SendFloor("a", "gpt", 1).ok());
  ASSERT_TRUE(a_.UntilReceived("b gpt 1"));
  a_.SetPeers({b_.node()}, {{"b", 2}});
  ASSERT_TRUE(b_.UntilCondition("a", [](const PeerCondition& a) { return CodeOf(a.last_error) == ErrorCode::FENCED; }));
  ASSERT_TRUE(b_.SendFloor("a", "gpt", 2).ok());
  EXPECT_FALSE(a_.UntilReceived("b gpt 2", milliseconds(500)));
  b_.SetSelf(2, absl::OkStatus());
  EXPECT_TRUE(a_.UntilReceived("b gpt 2"));
}

TEST_F(GrpcLinksTest, ANodeThatMayNotSpeakSaysNothing) {
  Introduce();
  ASSERT_TRUE(b_.SendFloor("a", "gpt", 1).ok());
  ASSERT_TRUE(a_.UntilReceived("b gpt 1"));
  b_.SetSelf(1, Error(ErrorCode::FENCED, "the lease is over"));
  b_.SetPeers({a_.node()});
  EXPECT_FALSE(b_.Condition("a").connected);
  ASSERT_TRUE(b_.SendFloor("a", "gpt", 2).ok());
  EXPECT_FALSE(a_.UntilReceived("b gpt 2", milliseconds(500)));
  EXPECT_THAT(b_.Condition("a").last_error.message(), HasSubstr("the lease is over"));
  b_.SetSelf(3, absl::OkStatus());
  EXPECT_TRUE(a_.UntilReceived("b gpt 2"));
}

TEST_F(GrpcLinksTest, APeerThatMovedIsDialledThere) {
  TestNode::Options elsewhere = Named("b");
  elsewhere.host = "127.0.0.2";
  TestNode moved(elsewhere);
  LinkUp(b_.address());
  moved.SetPeers({a_.node()});
  a_.SetPeers({moved.node()});
  ASSERT_TRUE(a_.SendFloor("b", "gpt", 2).ok());
  EXPECT_TRUE(moved.UntilReceived("a gpt 2"));
  EXPECT_THAT(b_.Received(), ElementsAre("a first 1"));
}

TEST_F(GrpcLinksTest, AnAddressOfAnotherNodeIsNoticed) {
  a_.SetPeers({{"c", b_.address()}});
  b_.SetPeers({a_.node()});
  ASSERT_TRUE(a_.SendFloor("c", "gpt", 1).ok());
  ASSERT_TRUE(a_.UntilCondition("c", [](const PeerCondition& c) { return !c.last_error.ok(); }));
  EXPECT_THAT(a_.Condition("c").last_error.message(), HasSubstr("dialled node c and reached node b"));
  EXPECT_THAT(b_.Received(), IsEmpty());
}

TEST_F(GrpcLinksTest, ANewLifeOfAPeerTakesThePlaceOfTheOldOne) {
  a_.SetPeers({b_.node()});
  RawCaller caller(a_.address(), {});
  RawLink before(caller.channel(), Saying(MakeHello(CardOf("b", 1), "a")));
  ASSERT_TRUE(before.ReadAnswer());
  RawLink after(caller.channel(), Saying(MakeHello(CardOf("b", 2), "a")));
  ASSERT_TRUE(after.ReadAnswer());
  EXPECT_EQ(CodeOf(before.Wait()), ErrorCode::FENCED);
}

TEST_F(GrpcLinksTest, ALinkToAnOldLifeIsMadeAnewWhenThePeerSpeaks) {
  RawCallee old({}, MakeAnswer(CardOf("b", 1), 1));
  a_.SetPeers({{"b", old.address()}});
  ASSERT_TRUE(a_.SendFloor("b", "gpt", 1).ok());
  ASSERT_TRUE(a_.UntilConnected("b"));
  RawCaller caller(a_.address(), {});
  EXPECT_TRUE(caller.Hello(MakeHello(CardOf("b", 1), "a")).ok());
  RawLink same(caller.channel(), Saying(MakeHello(CardOf("b", 1), "a")));
  ASSERT_TRUE(same.ReadAnswer());
  EXPECT_EQ(a_.Condition("b").links, 1U) << "the same life: the link stays";
  RawLink other(caller.channel(), Saying(MakeHello(CardOf("b", 2), "a")));
  ASSERT_TRUE(other.ReadAnswer());
  EXPECT_TRUE(a_.UntilCondition(
      "b", [](const PeerCondition& b) { return b.links == 2; }, seconds(5)));
}

TEST_F(GrpcLinksTest, WhoSaysNoHelloIsSentAway) {
  TestNode::Options options = Named("c");
  options.hello_patience = milliseconds(300);
  TestNode c(options);
  c.SetPeers({b_.node()});
  RawCaller caller(c.address(), {});
  v1::State state;
  state.set_job("gpt");
  state.set_coordinator("b-agent");
  EXPECT_EQ(CodeOf(caller.Link({Saying(state)})), ErrorCode::PROTOCOL);
  EXPECT_EQ(CodeOf(caller.Link({v1::LinkRequest()})), ErrorCode::PROTOCOL);
  EXPECT_TRUE(caller.Link({}).ok()) << "came and went";
  grpc::ClientContext context;
  auto silent = v1::Peer::NewStub(caller.channel())->Link(&context);
  v1::LinkResponse response;
  EXPECT_FALSE(silent->Read(&response));
  EXPECT_THAT(silent->Finish().error_message(), HasSubstr("begins with Hello"));
  EXPECT_THAT(c.Received(), IsEmpty());
}

TEST_F(GrpcLinksTest, WhatIsNoMessageOfThisPeerEndsItsLink) {
  a_.SetPeers({b_.node()});
  RawCaller caller(a_.address(), {});
  const v1::LinkRequest hello = Saying(MakeHello(CardOf("b"), "a"));
  v1::State good;
  good.set_job("gpt");
  good.set_coordinator("b-agent");
  v1::State other = good;
  other.set_coordinator("c-agent");
  v1::State nameless = good;
  nameless.set_job("../x");
  EXPECT_TRUE(caller.Link({hello, Saying(good)}).ok());
  EXPECT_EQ(CodeOf(caller.Link({hello, Saying(other), Saying(good)})), ErrorCode::PROTOCOL);
  EXPECT_EQ(CodeOf(caller.Link({hello, Saying(nameless), Saying(good)})), ErrorCode::PROTOCOL);
  EXPECT_EQ(CodeOf(caller.Link({hello, hello, Saying(good)})), ErrorCode::PROTOCOL) << "one Hello a link";
  EXPECT_THAT(a_.Received(), ElementsAre("b gpt 0")) << "the first, and nothing after a wrong one";
}

TEST_F(GrpcLinksTest, WhatIsTooLargeIsNeitherSentNorTaken) {
  Introduce();
  const absl::Status refused = a_.SendFloor("b", "gpt", 1, kMaxLinkMessage);
  EXPECT_EQ(CodeOf(refused), ErrorCode::REFUSED);
  EXPECT_THAT(refused.message(), HasSubstr("job gpt, state of"));
  ASSERT_TRUE(a_.SendFloor("b", "gpt", 2, kMaxLinkMessage - 200).ok());
  EXPECT_TRUE(b_.UntilReceived("a gpt 2")) << "the largest passes";
  RawCaller caller(b_.address(), {});
  v1::State large = *StateOf("gpt", "a-agent", 3, kMaxLinkMessage + 4096).state();
  EXPECT_FALSE(caller.Link({Saying(MakeHello(CardOf("a"), "b")), Saying(large)}).ok());
  EXPECT_FALSE(caller.Link({Saying(large)}).ok()) << "also before Hello";
  ASSERT_TRUE(a_.SendFloor("b", "gpt", 4).ok());
  EXPECT_TRUE(b_.UntilReceived("a gpt 4")) << "and everybody else is heard";
}

TEST_F(GrpcLinksTest, BytesThatAreNoProtobufEndTheCall) {
  a_.SetPeers({b_.node()});
  RawCaller caller(a_.address(), {});
  grpc::GenericStub generic(caller.channel());
  const grpc::Slice nonsense("\xFF\xFF\xFF not");
  for (const char* method : {"/ckptd.v1.Peer/Link", "/ckptd.v1.Peer/Hello"}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    auto call = generic.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&nonsense, 1), &queue);
    call->StartCall();
    grpc::ByteBuffer answer;
    grpc::Status status;
    call->Finish(&answer, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_FALSE(status.ok() && answer.Length() > 0) << method;
  }
  EXPECT_TRUE(caller.Hello(MakeHello(CardOf("b"), "a")).ok()) << "others are heard";
}

TEST_F(GrpcLinksTest, AConnectionThatLivedLongEnoughIsMadeAnew) {
  TestNode::Options options = Named("c");
  options.longest_connection = milliseconds(500);
  TestNode c(options);
  c.SetPeers({a_.node()});
  a_.SetPeers({c.node()});
  ASSERT_TRUE(a_.SendFloor("c", "gpt", 1).ok());
  EXPECT_TRUE(a_.UntilCondition("c", [](const PeerCondition& peer) { return peer.links >= 3; }));
  ASSERT_TRUE(a_.SendFloor("c", "gpt", 2).ok());
  EXPECT_TRUE(c.UntilReceived("a gpt 2"));
}

// What the callee has not read when the caller would have a new connection is read first.
TEST_F(GrpcLinksTest, ACallerMakesItsConnectionAnewAndLosesNothing) {
  TestNode::Options options = Named("c");
  options.longest_connection = milliseconds(1000);
  TestNode c(options);
  c.SetPeers({b_.node()});
  b_.SetPeers({c.node()});
  ASSERT_TRUE(c.SendFloor("b", "first", 1).ok());
  ASSERT_TRUE(b_.UntilReceived("c first 1"));
  b_.Hold();
  constexpr uint64_t kJobs = 50;
  for (uint64_t job = 1; job <= kJobs; ++job) ASSERT_TRUE(c.SendFloor("b", absl::StrCat("job-", job), job).ok());
  ASSERT_TRUE(c.UntilCondition("b", [](const PeerCondition& b) { return b.sent_messages == kJobs + 1; }));
  EXPECT_FALSE(c.UntilCondition(
      "b", [](const PeerCondition& b) { return b.links != 1 || !b.connected; }, milliseconds(1500)));
  b_.LetGo();
  ASSERT_TRUE(c.UntilCondition("b", [](const PeerCondition& b) { return b.links >= 3; }));
  EXPECT_EQ(b_.Received().size(), kJobs + 1);
  EXPECT_TRUE(c.Condition("b").last_error.ok()) << c.Condition("b").last_error;
}

TEST_F(GrpcLinksTest, WithoutTlsNothingLeavesThisMachine) {
  a_.SetPeers({{"far", "10.255.255.1:9465"}});
  ASSERT_TRUE(a_.SendFloor("far", "gpt", 1).ok());
  EXPECT_THAT(a_.Condition("far").last_error.message(), HasSubstr("set peers.tls to mutual"));
  for (const char* listen : {"0.0.0.0:0", "[::]:0", "localhost:0"}) {
    auto credentials = Credentials::Create(PosixFiles(), {TlsMode::kPlaintextOnLoopback, "", "", ""}, kTestCluster);
    GrpcLinksOptions options;
    options.listen = listen;
    options.self = [] { return SelfStanding{"x", 1, absl::OkStatus()}; };
    auto loop = *Loop::Create(SystemClock(), 4);
    class Nobody final : public LinkSink {
      void Received(const std::string&, const LinkMessage&) override {}
    } nobody;
    EXPECT_EQ(CodeOf(GrpcLinks::Start(*loop, nobody, *std::move(credentials), options).status()),
              ErrorCode::INVALID_ARGUMENT)
        << listen;
  }
}

TEST_F(GrpcLinksTest, APortThatIsTakenIsAnError) {
  auto credentials = Credentials::Create(PosixFiles(), {TlsMode::kPlaintextOnLoopback, "", "", ""}, kTestCluster);
  GrpcLinksOptions options;
  options.listen = a_.address();
  options.self = [] { return SelfStanding{"x", 1, absl::OkStatus()}; };
  auto loop = *Loop::Create(SystemClock(), 4);
  class Nobody final : public LinkSink {
    void Received(const std::string&, const LinkMessage&) override {}
  } nobody;
  const absl::Status taken = GrpcLinks::Start(*loop, nobody, *std::move(credentials), options).status();
  EXPECT_EQ(CodeOf(taken), ErrorCode::REFUSED);
  EXPECT_THAT(taken.message(), HasSubstr(a_.address()));
}

}  // namespace
}  // namespace ckptd::transport
