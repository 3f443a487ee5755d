// Who may speak to whom over mutual TLS, with certificates made by the openssl program: of every identity that a caller
// or a callee can show, on every method, only the right one gets through. And certificates that change under running
// agents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/mounted_dir.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/transport/testing/authority.h"
#include "daemon/transport/testing/raw_peer.h"
#include "daemon/transport/testing/test_node.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Uri(const std::string& name) { return absl::StrCat("URI:spiffe://", kTestCluster, "/ckptd/", name); }

class GrpcTrustTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HaveOpenssl()) GTEST_SKIP() << "skipped: no " << kOpenssl << " (package openssl)";
    ca_.emplace(dir_.path(), "ca");
    ca_->Issue("a", Uri("a"));
    ca_->Issue("b", Uri("b"));
  }

  TestNode::Options Tls(const std::string& name) const {
    TestNode::Options options;
    options.name = name;
    options.tls = ca_->Tls(name);
    return options;
  }
  RawIdentity Showing(const Authority& authority, const std::string& file) const {
    return {TextOf(authority.ca()), TextOf(authority.cert(file)), TextOf(authority.key(file))};
  }
  static Card CardOf(const std::string& name, uint64_t generation = 5) {
    return {kTestCluster, name, name + "-agent", generation, 77};
  }

  TempDir dir_;
  std::optional<Authority> ca_;
};

// A caller of node a, whose members are a and b, b from generation 5 on.
struct CallerCase {
  std::string what;
  RawIdentity shown;
  Card says;
  ErrorCode hello;  // of Peer.Hello and Peer.Link
};

TEST_F(GrpcTrustTest, OfAllCallersOnlyTheRightOneIsHeardOnEveryMethod) {
  const Authority other(dir_.path(), "other");
  other.Issue("forged", Uri("b"));
  ca_->Issue("late", Uri("b"), -1);
  ca_->Issue("stranger", Uri("stranger"));
  ca_->Issue("abroad", "URI:spiffe://abroad/ckptd/b");
  ca_->Issue("dns", "DNS:b");
  ca_->Issue("nameless", "");
  ca_->Issue("two", Uri("b") + "," + Uri("c"));
  TestNode a(Tls("a"));
  a.SetPeers({a.node(), {"b", "127.0.0.1:1"}}, {{"b", 5}});
  Card abroad = CardOf("b");
  abroad.cluster = "abroad";
  constexpr ErrorCode kNoConnection = ErrorCode::AGENT_UNREACHABLE;
  const std::vector<CallerCase> cases = {
      {"no TLS", {}, CardOf("b"), kNoConnection},
      {"no certificate", {TextOf(ca_->ca()), "", ""}, CardOf("b"), kNoConnection},
      {"of another authority", Showing(other, "forged"), CardOf("b"), kNoConnection},
      {"expired", Showing(*ca_, "late"), CardOf("b"), kNoConnection},
      {"of the callee itself", Showing(*ca_, "a"), CardOf("b"), ErrorCode::PERMISSION},
      {"of another name", Showing(*ca_, "stranger"), CardOf("b"), ErrorCode::PERMISSION},
      {"without names", Showing(*ca_, "nameless"), CardOf("b"), ErrorCode::PERMISSION},
      {"of two names", Showing(*ca_, "two"), CardOf("b"), ErrorCode::PERMISSION},
      {"of another cluster", Showing(*ca_, "abroad"), CardOf("b"), ErrorCode::PERMISSION},
      {"of no member", Showing(*ca_, "stranger"), CardOf("stranger"), ErrorCode::NOT_FOUND},
      {"of the callee, and says so", Showing(*ca_, "a"), CardOf("a"), ErrorCode::NOT_FOUND},
      {"right, but fenced", Showing(*ca_, "b"), CardOf("b", 4), ErrorCode::FENCED},
      {"right, but says another cluster", Showing(*ca_, "b"), abroad, ErrorCode::REFUSED},
      {"right", Showing(*ca_, "b"), CardOf("b"), ErrorCode::OK},
      {"right, by its DNS name", Showing(*ca_, "dns"), CardOf("b"), ErrorCode::OK},
  };
  const v1::State state = *StateOf("gpt", "b-agent", 1).state();
  const v1::State own = *StateOf("gpt", "stranger-agent", 1).state();
  size_t expected = 0;
  for (const CallerCase& one : cases) {
    SCOPED_TRACE(one.what);
    RawCaller caller(a.address(), one.shown);
    const v1::HelloRequest hello = MakeHello(one.says, "a");
    EXPECT_EQ(CodeOf(caller.Hello(hello)), one.hello) << caller.Hello(hello);
    const absl::Status linked = caller.Link({Saying(hello), Saying(state), Saying(own)});
    if (one.hello == ErrorCode::OK) {
      EXPECT_EQ(CodeOf(linked), ErrorCode::PROTOCOL) << "after the message that is not its own";
      EXPECT_TRUE(a.UntilReceived("b gpt 1"));
      ++expected;
    } else {
      EXPECT_EQ(CodeOf(linked), one.hello) << linked;
    }
    EXPECT_NE(CodeOf(caller.Link({Saying(state)})), ErrorCode::OK) << "nobody is heard without Hello";
    EXPECT_EQ(a.Received().size(), expected);
  }
}

// What answers node a, which dials b: b is believed from generation 5 on.
struct CalleeCase {
  std::string what;
  RawIdentity shown;
  Card says;
  ErrorCode error;
  bool hears_hello;  // TLS lets it through that far
};

TEST_F(GrpcTrustTest, OfAllCalleesOnlyTheRightOneIsSpokenTo) {
  const Authority other(dir_.path(), "other");
  other.Issue("forged", Uri("b"));
  ca_->Issue("late", Uri("b"), -1);
  ca_->Issue("stranger", Uri("stranger"));
  ca_->Issue("dns", "DNS:b");
  ca_->Issue("host", "DNS:localhost,IP:127.0.0.1");
  constexpr ErrorCode kNoConnection = ErrorCode::AGENT_UNREACHABLE;
  const std::vector<CalleeCase> cases = {
      {"no TLS", {}, CardOf("b"), kNoConnection, false},
      {"of another authority", Showing(other, "forged"), CardOf("b"), kNoConnection, false},
      {"expired", Showing(*ca_, "late"), CardOf("b"), kNoConnection, false},
      {"of another name", Showing(*ca_, "stranger"), CardOf("b"), kNoConnection, false},
      {"of its host only", Showing(*ca_, "host"), CardOf("b"), kNoConnection, false},
      {"right, but says another name", Showing(*ca_, "b"), CardOf("c"), ErrorCode::REFUSED, true},
      {"right, but fenced", Showing(*ca_, "b"), CardOf("b", 4), ErrorCode::FENCED, true},
      {"right", Showing(*ca_, "b"), CardOf("b"), ErrorCode::OK, true},
      {"right, by its DNS name", Showing(*ca_, "dns"), CardOf("b"), ErrorCode::OK, true},
  };
  TestNode a(Tls("a"));
  for (const CalleeCase& one : cases) {
    SCOPED_TRACE(one.what);
    RawCallee callee(one.shown, MakeAnswer(one.says, 1));
    a.SetPeers({{"b", callee.address()}}, {{"b", 5}});
    ASSERT_TRUE(a.SendFloor("b", "gpt", 1).ok());
    if (one.error == ErrorCode::OK) {
      EXPECT_TRUE(a.UntilCondition("b", [](const PeerCondition& b) { return b.connected && b.sent_messages == 1; }));
      EXPECT_TRUE(a.Condition("b").last_error.ok());
    } else {
      EXPECT_TRUE(a.UntilCondition("b", [&](const PeerCondition& b) { return CodeOf(b.last_error) == one.error; }))
          << a.Condition("b").last_error;
      EXPECT_FALSE(a.Condition("b").connected);
      EXPECT_EQ(callee.messages(), 0);
    }
    EXPECT_EQ(callee.hellos() > 0, one.hears_hello);
    a.SetPeers({});
  }
}

TEST_F(GrpcTrustTest, TheErrorOfAConnectionSaysWhose) {
  ca_->Issue("stranger", Uri("stranger"));
  RawCallee callee(Showing(*ca_, "stranger"), MakeAnswer(CardOf("b"), 1));
  TestNode a(Tls("a"));
  a.SetPeers({{"b", callee.address()}});
  ASSERT_TRUE(a.SendFloor("b", "gpt", 1).ok());
  ASSERT_TRUE(a.UntilCondition("b", [](const PeerCondition& b) { return !b.last_error.ok(); }));
  EXPECT_THAT(a.Condition("b").last_error.message(), HasSubstr("node b at 127.0.0.1:"));
  RecordProperty("says", std::string(a.Condition("b").last_error.message()));
}

TEST_F(GrpcTrustTest, AgentsSpeakBothWays) {
  TestNode a(Tls("a"));
  TestNode b(Tls("b"));
  a.SetPeers({b.node()});
  b.SetPeers({a.node()});
  ASSERT_TRUE(a.SendFloor("b", "gpt", 1).ok() && b.SendFloor("a", "gpt", 2).ok());
  EXPECT_TRUE(b.UntilReceived("a gpt 1"));
  EXPECT_TRUE(a.UntilReceived("b gpt 2"));
}

// Everything changes: first both trust the new authority too, then each gets a certificate of it, then the old
// authority goes. The agents run all the while; connections are made anew every half second.
TEST_F(GrpcTrustTest, CertificatesAndAuthoritiesAreExchangedUnderRunningAgents) {
  TestNode::Options a_options = Tls("a");
  TestNode::Options b_options = Tls("b");
  a_options.longest_connection = b_options.longest_connection = milliseconds(500);
  TestNode a(a_options);
  TestNode b(b_options);
  a.SetPeers({b.node()});
  b.SetPeers({a.node()});
  const RawIdentity of_yesterday = Showing(*ca_, "b");
  const auto replace_ca = [this](const std::string& text) {
    std::ofstream(dir_.path() + "/next.pem") << text;
    std::filesystem::rename(dir_.path() + "/next.pem", ca_->ca());
  };
  const Authority next(dir_.path(), "next-ca");
  // Passes through a connection made after the change was seen.
  uint64_t floor = 0;
  const auto speaks = [&] {
    ++floor;
    const uint64_t links = a.Condition("b").links;
    const bool sent = a.SendFloor("b", "gpt", floor).ok() && b.SendFloor("a", "gpt", floor).ok();
    return sent && b.UntilReceived(absl::StrCat("a gpt ", floor)) && a.UntilReceived(absl::StrCat("b gpt ", floor)) &&
           a.UntilCondition("b", [&](const PeerCondition& peer) { return peer.links >= links + 4; });
  };
  ASSERT_TRUE(speaks());
  const std::string before = TextOf(ca_->ca());
  replace_ca(before + TextOf(next.ca()));
  ASSERT_TRUE(speaks()) << "both authorities";
  next.Issue("a", Uri("a"));
  ASSERT_TRUE(speaks()) << "a's certificate is new, b's old";
  next.Issue("b", Uri("b"));
  ASSERT_TRUE(speaks()) << "both are new";
  EXPECT_TRUE(RawCaller(a.address(), of_yesterday).Hello(MakeHello(CardOf("b"), "a")).ok());
  replace_ca(TextOf(next.ca()));
  ASSERT_TRUE(speaks()) << "the old authority is gone";
  ASSERT_TRUE(speaks());
  EXPECT_FALSE(RawCaller(a.address(), of_yesterday).Hello(MakeHello(CardOf("b"), "a")).ok())
      << "whoever is signed by the old authority only is not heard any more";
}

// By one step, as Kubernetes does it: another authority's, so that only those who have taken it speak to each other.
TEST_F(GrpcTrustTest, CertificatesBehindLinksAreExchangedUnderRunningAgents) {
  const TempDir folder;
  const Authority next(folder.path(), "ca");
  for (const char* node : {"a", "b"}) next.Issue(node, Uri(node));
  const MountedDir mounted({"ca.pem", "a.pem", "a.key", "b.pem", "b.key"}, dir_.path());
  const auto behind_links = [&](const std::string& node) {
    TestNode::Options options = Tls(node);
    options.tls.ca = mounted.PathOf("ca.pem");
    options.tls.cert = mounted.PathOf(node + ".pem");
    options.tls.key = mounted.PathOf(node + ".key");
    options.longest_connection = milliseconds(500);
    return options;
  };
  TestNode a(behind_links("a"));
  TestNode b(behind_links("b"));
  a.SetPeers({b.node()});
  b.SetPeers({a.node()});
  ASSERT_TRUE(a.SendFloor("b", "gpt", 1).ok());
  ASSERT_TRUE(b.UntilReceived("a gpt 1"));
  mounted.Switch(folder.path());
  const uint64_t links = a.Condition("b").links;
  ASSERT_TRUE(a.UntilCondition("b", [&](const PeerCondition& peer) { return peer.links >= links + 6; }));
  ASSERT_TRUE(a.SendFloor("b", "gpt", 2).ok());
  EXPECT_TRUE(b.UntilReceived("a gpt 2"));
  const v1::HelloRequest hello = MakeHello(CardOf("b"), "a");
  EXPECT_TRUE(RawCaller(a.address(), Showing(next, "b")).Hello(hello).ok());
  EXPECT_FALSE(RawCaller(a.address(), Showing(*ca_, "b")).Hello(hello).ok());
}

TEST_F(GrpcTrustTest, AKeyThatDoesNotFitItsCertificateIsMendedByTheNextLook) {
  TestNode a(Tls("a"));
  TestNode::Options options = Tls("b");
  options.longest_connection = milliseconds(500);
  TestNode b(options);
  a.SetPeers({b.node()});
  b.SetPeers({a.node()});
  ASSERT_TRUE(a.SendFloor("b", "gpt", 1).ok());
  ASSERT_TRUE(b.UntilReceived("a gpt 1"));
  ca_->Issue("other", Uri("b"));
  std::filesystem::rename(ca_->key("other"), ca_->key("b"));
  ASSERT_TRUE(a.UntilCondition("b", [](const PeerCondition& peer) {
    return !peer.connected && absl::StrContains(peer.last_error.message(), "failed to connect");
  }));
  const uint64_t before = a.Condition("b").links;
  EXPECT_FALSE(a.UntilCondition(
      "b", [&](const PeerCondition& peer) { return peer.links > before; }, seconds(2)))
      << "no connection is made";
  std::filesystem::rename(ca_->cert("other"), ca_->cert("b"));
  const uint64_t links = a.Condition("b").links;
  EXPECT_TRUE(a.UntilCondition("b", [&](const PeerCondition& peer) { return peer.links >= links + 4; }));
  ASSERT_TRUE(a.SendFloor("b", "gpt", 2).ok());
  EXPECT_TRUE(b.UntilReceived("a gpt 2"));
}

TEST_F(GrpcTrustTest, FilesThatAreMissingOrNoneAreNamed) {
  const auto error = [this](const std::function<void(TlsOptions*)>& change) {
    TlsOptions options = ca_->Tls("a");
    change(&options);
    auto made = Credentials::Create(PosixFiles(), options, kTestCluster);
    return std::string(made.status().message());
  };
  EXPECT_THAT(error([](TlsOptions*) {}), IsEmpty());
  EXPECT_THAT(error([](TlsOptions* o) { o->ca.clear(); }), HasSubstr("give peers.tls_ca"));
  EXPECT_THAT(error([](TlsOptions* o) { o->cert.clear(); }), HasSubstr("give peers.tls_cert"));
  EXPECT_THAT(error([](TlsOptions* o) { o->key.clear(); }), HasSubstr("give peers.tls_key"));
  EXPECT_THAT(error([](TlsOptions* o) { o->cert += ".none"; }), HasSubstr("a.pem.none"));
  EXPECT_THAT(error([this](TlsOptions* o) { o->key = dir_.path() + "/new-a.ext"; }), HasSubstr("is not a PEM file"));
}

}  // namespace
}  // namespace ckptd::transport
