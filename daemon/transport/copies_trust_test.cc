// Who may ask for copies, over mutual TLS: every method of service Copies by every kind of caller, and what an answer
// of the wrong callee is worth.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/os/testing/temp_dir.h"
#include "daemon/transport/copy_request.h"
#include "daemon/transport/testing/authority.h"
#include "daemon/transport/testing/raw_move.h"
#include "daemon/transport/testing/raw_peer.h"
#include "daemon/transport/testing/test_holder.h"
#include "daemon/transport/testing/test_node.h"

namespace ckptd::transport {
namespace {

std::string SpiffeUri(const std::string& name) { return absl::StrCat("URI:spiffe://", kTestCluster, "/ckptd/", name); }

class CopiesTrustTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HaveOpenssl()) GTEST_SKIP() << "skipped: no " << kOpenssl << " (package openssl)";
    ca_.emplace(dir_.path(), "ca");
    for (const char* name : {"a", "b", "c", "stranger"}) ca_->Issue(name, SpiffeUri(name));
  }
  TestNode::Options Tls(const std::string& name) {
    TestNode::Options options;
    options.name = name;
    options.tls = ca_->Tls(name);
    options.copy_host = &holder_;
    return options;
  }
  RawIdentity Showing(const Authority& authority, const std::string& file) const {
    return {TextOf(authority.ca()), TextOf(authority.cert(file)), TextOf(authority.key(file))};
  }
  static Card CardOf(const std::string& name, uint64_t generation = 5) {
    return {kTestCluster, name, name + "-agent", generation, 77};
  }

  TestHolder holder_;
  TempDir dir_;
  std::optional<Authority> ca_;
};

struct AskerCase {
  std::string what;
  RawIdentity shown;
  Card says;
  ErrorCode code;
  std::string to = "a";
};

// Node a has members a, b (from generation 5 on) and c. Move is tried with a token that is b's.
TEST_F(CopiesTrustTest, OfAllCallersOnlyTheRightOneIsHeardOnEveryMethod) {
  const Authority other(dir_.path(), "other");
  other.Issue("forged", SpiffeUri("b"));
  ca_->Issue("late", SpiffeUri("b"), -1);
  ca_->Issue("abroad", "URI:spiffe://abroad/ckptd/b");
  TestNode a(Tls("a"));
  a.SetPeers({a.node(), {"b", "127.0.0.1:1"}, {"c", "127.0.0.1:1"}}, {{"b", 5}});
  Card abroad = CardOf("b");
  abroad.cluster = "abroad";
  constexpr ErrorCode kNoConnection = ErrorCode::AGENT_UNREACHABLE;
  const std::vector<AskerCase> cases = {
      {"no TLS", {}, CardOf("b"), kNoConnection},
      {"no certificate", {TextOf(ca_->ca()), "", ""}, CardOf("b"), kNoConnection},
      {"signed by itself", Showing(other, "forged"), CardOf("b"), kNoConnection},
      {"expired", Showing(*ca_, "late"), CardOf("b"), kNoConnection},
      {"another member's name", Showing(*ca_, "c"), CardOf("b"), ErrorCode::PERMISSION},
      {"of another cluster", Showing(*ca_, "abroad"), CardOf("b"), ErrorCode::PERMISSION},
      {"not a member", Showing(*ca_, "stranger"), CardOf("stranger"), ErrorCode::NOT_FOUND},
      {"fenced", Showing(*ca_, "b"), CardOf("b", 4), ErrorCode::FENCED},
      {"says another cluster", Showing(*ca_, "b"), abroad, ErrorCode::REFUSED},
      {"meant another node", Showing(*ca_, "b"), CardOf("b"), ErrorCode::REFUSED, "c"},
      {"right", Showing(*ca_, "b"), CardOf("b"), ErrorCode::OK},
  };
  holder_.Put(1, TestImage(kTestChunk));
  RawCaller right(a.address(), Showing(*ca_, "b"));
  v1::OfferRequest of_b = OfferOf(1, kTestChunk);
  *of_b.mutable_from() = MakeHello(CardOf("b"), "a");
  int asked = 0;
  for (const AskerCase& one : cases) {
    SCOPED_TRACE(one.what);
    RawCaller caller(a.address(), one.shown);
    const v1::HelloRequest hello = MakeHello(one.says, one.to);
    v1::OfferRequest offer = OfferOf(1, kTestChunk);
    *offer.mutable_from() = hello;
    v1::OfferResponse response;
    EXPECT_EQ(CodeOf(RawOffer(caller.channel(), offer, &response)), one.code);
    v1::SealRequest seal = SealOf(1, holder_.Of(1)->bytes);
    *seal.mutable_from() = hello;
    EXPECT_EQ(CodeOf(RawSeal(caller.channel(), seal)), one.code);
    v1::DescribeRequest describe = DescribeOf(1);
    *describe.mutable_from() = hello;
    EXPECT_EQ(CodeOf(RawDescribe(caller.channel(), describe)), one.code);
    if (one.code == ErrorCode::OK) asked += 3;
    EXPECT_EQ(holder_.asked(), asked) << "the host hears of nobody else";

    ASSERT_TRUE(RawOffer(right.channel(), of_b, &response).ok());
    ++asked;
    const int redeemed = holder_.redeemed();
    RawMove move(caller.channel());
    (void)move.Hello(hello, EncodeHello({*TokenOf(response.token()), NameOfCopy("b", 1), kTestChunk, kTestChunk}));
    EXPECT_EQ(CodeOf(move.End()), one.code);
    EXPECT_EQ(holder_.redeemed() - redeemed, one.code == ErrorCode::OK ? 1 : 0);
  }
}

// c is a member with its own certificate, and has come to know b's token.
TEST_F(CopiesTrustTest, TheTokenOfAnotherPeerIsOfNoUse) {
  TestNode a(Tls("a"));
  a.SetPeers({{"b", "127.0.0.1:1"}, {"c", "127.0.0.1:1"}});
  RawCaller b(a.address(), Showing(*ca_, "b"));
  RawCaller c(a.address(), Showing(*ca_, "c"));
  v1::OfferRequest offer = OfferOf(1, kTestChunk);
  *offer.mutable_from() = MakeHello(CardOf("b"), "a");
  for (const std::string name : {"b", "c"}) {
    v1::OfferResponse response;
    ASSERT_TRUE(RawOffer(b.channel(), offer, &response).ok());
    RawMove move(c.channel());
    (void)move.Hello(MakeHello(CardOf("c"), "a"),
                     EncodeHello({*TokenOf(response.token()), NameOfCopy(name, 1), kTestChunk, kTestChunk}));
    EXPECT_EQ(CodeOf(move.End()), ErrorCode::PERMISSION) << name;
  }
  EXPECT_EQ(holder_.redeemed(), 0);
}

// Node a asks b, which is believed from generation 5 on, and is of generation 1.
TEST_F(CopiesTrustTest, TheAnswerOfAFencedCalleeIsWorthNothing) {
  TestNode a(Tls("a"));
  TestNode b(Tls("b"));
  b.SetPeers({a.node()});
  const auto ask = [&] {
    Mutex mutex;
    CondVar changed;
    std::optional<absl::Status> status;
    a.Do([&] {
      a.copies().Offer("b", OfferOf(1, kTestChunk), std::chrono::seconds(10), [&](const auto& response) {
        MutexLock lock(mutex);
        status = response.status();
        changed.NotifyAll();
      });
    });
    MutexLock lock(mutex);
    while (!status) changed.Wait(mutex);
    return CodeOf(*status);
  };
  a.SetPeers({b.node()});
  EXPECT_EQ(ask(), ErrorCode::OK);
  a.SetPeers({b.node()}, {{"b", 5}});
  EXPECT_EQ(ask(), ErrorCode::FENCED);
  TestNode c(Tls("c"));
  a.SetPeers({{"b", c.address()}});
  EXPECT_EQ(ask(), ErrorCode::AGENT_UNREACHABLE) << "TLS finds another member's certificate there";
}

}  // namespace
}  // namespace ckptd::transport
