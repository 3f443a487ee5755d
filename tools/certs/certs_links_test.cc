// What the certificates are for: agents' links (daemon/transport) over mutual TLS, with files that were made here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "daemon/base/clock.h"
#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/transport/testing/authority.h"
#include "daemon/transport/testing/raw_peer.h"
#include "daemon/transport/testing/test_node.h"
#include "tools/certs/cert_files.h"

namespace ckptd::certs {
namespace {

using std::chrono::milliseconds;
using transport::kTestCluster;
using transport::RawCaller;
using transport::RawIdentity;
using transport::TestNode;
using transport::TextOf;

class CertsLinksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NewAuthority("ours");
    Issue("ours", "a");
    Issue("ours", "b");
  }
  static int64_t Now() { return std::chrono::duration_cast<std::chrono::seconds>(SystemClock().Wall()).count(); }
  [[nodiscard]] std::string Dir(const std::string& authority) const { return temp_.path() + "/" + authority; }

  void NewAuthority(const std::string& name) {
    const absl::Status made = MakeAuthority(PosixFiles(), Dir(name), *Authority::Make(kTestCluster, Now() - kDay, 3));
    ASSERT_TRUE(made.ok()) << made;
  }
  // Into the authority's own folder, over what is there.
  void Issue(const std::string& authority, const std::string& node, int64_t lasts = kDay) {
    const auto pair = LoadAuthority(PosixFiles(), Dir(authority))->Issue(kTestCluster, node, Now() + lasts - kDay, 1);
    ASSERT_TRUE(pair.ok() && WriteNode(PosixFiles(), Dir(authority), node, *pair).ok());
  }
  [[nodiscard]] TestNode::Options NodeOf(const std::string& authority, const std::string& name) const {
    const std::string dir = Dir(authority);
    TestNode::Options options;
    options.name = name;
    options.tls = {transport::TlsMode::kMutual, CertificatePath(dir, kCa), CertificatePath(dir, name),
                   KeyPath(dir, name), std::chrono::seconds(1)};
    options.longest_connection = milliseconds(500);
    return options;
  }
  [[nodiscard]] RawIdentity Showing(const std::string& trusted, const std::string& dir, const std::string& node) const {
    return {TextOf(CertificatePath(Dir(trusted), kCa)), TextOf(CertificatePath(Dir(dir), node)),
            TextOf(KeyPath(Dir(dir), node))};
  }

  TempDir temp_;
};

TEST_F(CertsLinksTest, NodesOfOneAuthoritySpeakBothWays) {
  TestNode a(NodeOf("ours", "a"));
  TestNode b(NodeOf("ours", "b"));
  a.SetPeers({b.node()});
  b.SetPeers({a.node()});
  ASSERT_TRUE(a.SendFloor("b", "gpt", 1).ok() && b.SendFloor("a", "gpt", 2).ok());
  EXPECT_TRUE(b.UntilReceived("a gpt 1")) << a.Condition("b").last_error;
  EXPECT_TRUE(a.UntilReceived("b gpt 2")) << b.Condition("a").last_error;
}

TEST_F(CertsLinksTest, ANodeOfAnotherAuthorityIsHeardByNobody) {
  NewAuthority("theirs");
  Issue("theirs", "b");
  TestNode a(NodeOf("ours", "a"));
  TestNode b(NodeOf("theirs", "b"));
  a.SetPeers({b.node()});
  b.SetPeers({a.node()});
  ASSERT_TRUE(a.SendFloor("b", "gpt", 1).ok() && b.SendFloor("a", "gpt", 2).ok());
  const auto failed = [](const transport::PeerCondition& peer) { return !peer.last_error.ok(); };
  EXPECT_TRUE(a.UntilCondition("b", failed));
  EXPECT_TRUE(b.UntilCondition("a", failed));
  EXPECT_TRUE(a.Received().empty());
  EXPECT_TRUE(b.Received().empty());
}

TEST_F(CertsLinksTest, ANodeSpeaksForItselfOnly) {
  Issue("ours", "c");
  TestNode a(NodeOf("ours", "a"));
  a.SetPeers({a.node(), {"b", "127.0.0.1:1"}});
  const v1::HelloRequest as_b = transport::MakeHello({kTestCluster, "b", "b-agent", 1, 77}, "a");
  EXPECT_TRUE(RawCaller(a.address(), Showing("ours", "ours", "b")).Hello(as_b).ok());
  EXPECT_EQ(CodeOf(RawCaller(a.address(), Showing("ours", "ours", "c")).Hello(as_b)), ErrorCode::PERMISSION);
}

// New keys under running agents: links are made anew until long after the certificates they began with are over.
TEST_F(CertsLinksTest, LinksGoOnThroughARotation) {
  constexpr int64_t kLasts = 15;
  const int64_t over = Now() + kLasts + 2;
  Issue("ours", "a", kLasts);
  Issue("ours", "b", kLasts);
  const RawIdentity of_yesterday = Showing("ours", "ours", "b");
  TestNode a(NodeOf("ours", "a"));
  TestNode b(NodeOf("ours", "b"));
  a.SetPeers({b.node()});
  b.SetPeers({a.node()});
  ASSERT_TRUE(a.SendFloor("b", "gpt", 1).ok() && b.SendFloor("a", "gpt", 1).ok());
  ASSERT_TRUE(b.UntilReceived("a gpt 1") && a.UntilReceived("b gpt 1"));
  Issue("ours", "a");
  Issue("ours", "b");
  ASSERT_LT(Now(), over - 2) << "too slow a machine to tell anything";
  const auto is_over = [&](const auto&) { return Now() >= over; };
  ASSERT_TRUE(a.UntilCondition("b", is_over));
  const uint64_t links = a.Condition("b").links;
  EXPECT_TRUE(a.UntilCondition("b", [&](const auto& peer) { return peer.links >= links + 4; })) << "links made anew";
  ASSERT_TRUE(a.SendFloor("b", "gpt", 2).ok() && b.SendFloor("a", "gpt", 2).ok());
  EXPECT_TRUE(b.UntilReceived("a gpt 2") && a.UntilReceived("b gpt 2"));
  const v1::HelloRequest hello = transport::MakeHello({kTestCluster, "b", "b-agent", 1, 77}, "a");
  EXPECT_FALSE(RawCaller(a.address(), of_yesterday).Hello(hello).ok());
  EXPECT_TRUE(RawCaller(a.address(), Showing("ours", "ours", "b")).Hello(hello).ok());
}

}  // namespace
}  // namespace ckptd::certs
