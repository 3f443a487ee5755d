#include "daemon/membership/dns_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/membership/membership.h"
#include "daemon/membership/testing/dns_server.h"
#include "daemon/os/thread.h"

namespace ckptd::membership {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kName[] = "ckptd.ml.svc.test";
constexpr char kSrvName[] = "_peers._tcp.ckptd.ml.svc.test";
constexpr char kPodA[] = "pod-a.ckptd.ml.svc.test";
constexpr char kPodB[] = "pod-b.ckptd.ml.svc.test";

// A Membership over the resolver and a real server on loopback.
class DnsSourceTest : public ::testing::Test {
 protected:
  DnsSourceTest() : loop_(*Loop::Create(SystemClock(), 64)), worker_("dns", 1, 4) {}
  ~DnsSourceTest() override {
    membership_.reset();
    worker_.Stop();
  }

  void Start(const std::string& name, const Self& self, Nanos refresh = milliseconds(20)) {
    auto resolver = Resolver::Create(server_.address(), /*patience_seconds=*/1);
    ASSERT_TRUE(resolver.ok()) << resolver.status();
    auto source = std::make_unique<DnsSource>(*loop_, worker_, *resolver, DnsSettings{self, name + ".", refresh});
    membership_ = std::make_unique<Membership>(SystemClock(), std::move(source));
    ASSERT_TRUE(membership_->Start().ok());
  }

  template <typename Condition>
  [[nodiscard]] bool Until(Condition condition) {
    const Nanos deadline = SystemClock().Monotonic() + seconds(30);
    while (!condition() && SystemClock().Monotonic() < deadline) EXPECT_TRUE(loop_->RunOnce(milliseconds(50)).ok());
    return condition();
  }
  [[nodiscard]] bool UntilNames(const std::vector<std::string>& names) {
    return Until([&] { return Names() == names; });
  }
  [[nodiscard]] bool UntilFailed() {
    return Until([&] { return !membership_->view()->source.ok(); });
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const Member& member : membership_->view()->members) names.push_back(member.name);
    return names;
  }

  void SetAddresses(const std::vector<std::string>& ips, uint16_t type = kDnsA) {
    std::vector<std::string> data;
    data.reserve(ips.size());
    for (const std::string& ip : ips) data.push_back(AddressData(ip));
    server_.Set(kName, type, std::move(data));
  }

  DnsServer server_;
  std::unique_ptr<Loop> loop_;
  ThreadPool worker_;
  std::unique_ptr<Membership> membership_;
};

const Self kSelf = {"pod-b", "10.0.0.2", 9465, {{"rack", "r1"}}, 5};

TEST_F(DnsSourceTest, AddressesAreMembersAndChangesAreSeen) {
  SetAddresses({"10.0.0.2", "10.0.0.1"});
  Start(kName, kSelf);
  EXPECT_FALSE(membership_->self().status.ok()) << "nothing is known yet";
  ASSERT_TRUE(UntilNames({"10.0.0.1", "10.0.0.2"}));
  EXPECT_EQ(membership_->view()->number, 1U);
  EXPECT_EQ(membership_->view()->members[0].address, "10.0.0.1:9465");
  EXPECT_EQ(membership_->view()->members[1].domains, kSelf.domains);
  EXPECT_EQ(membership_->self().name, "10.0.0.2");
  EXPECT_TRUE(membership_->self().status.ok());
  SetAddresses({"10.0.0.2", "10.0.0.3"});
  ASSERT_TRUE(UntilNames({"10.0.0.2", "10.0.0.3"}));
  EXPECT_EQ(membership_->view()->number, 2U);
  EXPECT_TRUE(membership_->Admit("10.0.0.3", 1).ok());
  EXPECT_EQ(CodeOf(membership_->Admit("10.0.0.1", 1)), ErrorCode::NOT_FOUND);
}

TEST_F(DnsSourceTest, WhereThereIsNoIpv4TheOtherIsTaken) {
  SetAddresses({"fd00::1", "fd00::2"}, kDnsAaaa);
  Start(kName, kSelf);
  ASSERT_TRUE(UntilNames({"fd00::1", "fd00::2"}));
  EXPECT_EQ(membership_->view()->members[0].address, "[fd00::1]:9465");
  EXPECT_EQ(CodeOf(membership_->self().status), ErrorCode::NOT_FOUND);
  EXPECT_THAT(membership_->self().status.message(), HasSubstr("set peers.address"));
}

TEST_F(DnsSourceTest, ServicesNameTheirPodsAndPorts) {
  server_.Set(kSrvName, kDnsSrv, {SrvData(kPodB, 7001), SrvData(kPodA, 7000)});
  Start(kSrvName, Self{"pod-b", "", 9465, {}, 5});
  EXPECT_EQ(membership_->self().name, kPodB) << "before any answer: jobs of this node begin now";
  ASSERT_TRUE(UntilNames({kPodA, kPodB}));
  EXPECT_EQ(membership_->view()->members[0].address, absl::StrCat(kPodA, ":7000"));
  EXPECT_EQ(membership_->self().name, kPodB);
  EXPECT_TRUE(membership_->self().status.ok()) << membership_->self().status;
}

// Other agents would refuse what it says under a name that they do not know, and it may not change the one it has.
TEST_F(DnsSourceTest, AnotherNameThanItsOwnIsSaid) {
  server_.Set(kSrvName, kDnsSrv, {SrvData("pod-b.elsewhere.test", 7001), SrvData(kPodA, 7000)});
  Start(kSrvName, Self{"pod-b", "", 9465, {}, 5});
  ASSERT_TRUE(UntilNames({kPodA, "pod-b.elsewhere.test"}));
  EXPECT_EQ(membership_->self().name, kPodB);
  EXPECT_EQ(CodeOf(membership_->self().status), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(membership_->self().status.message(), HasSubstr("set agent.node_name to pod-b.elsewhere.test"));
  server_.Set(kSrvName, kDnsSrv, {SrvData(kPodB, 7001), SrvData(kPodA, 7000)});
  ASSERT_TRUE(UntilNames({kPodA, kPodB}));
  EXPECT_TRUE(membership_->self().status.ok()) << membership_->self().status;
}

// 512 bytes hold 30 of them: the rest comes over TCP.
TEST_F(DnsSourceTest, ALongAnswerIsCutOverUdpAndWholeOverTcp) {
  std::vector<std::string> ips;
  ips.reserve(2000);
  for (int i = 0; i < 2000; ++i) ips.push_back(absl::StrCat("10.1.", i / 250, ".", i % 250));
  SetAddresses(ips);
  Start(kName, kSelf);
  ASSERT_TRUE(Until([&] { return membership_->view()->members.size() == 2000; })) << membership_->view()->source;
}

TEST_F(DnsSourceTest, WhateverGoesWrongKeepsTheViewAndIsSaid) {
  const std::pair<DnsServer::Manner, ErrorCode> wrongs[] = {
      {DnsServer::kFailing, ErrorCode::TIMEOUT}, {DnsServer::kSilent, ErrorCode::TIMEOUT},
      {DnsServer::kCut, ErrorCode::TIMEOUT},     {DnsServer::kGarbage, ErrorCode::CORRUPT},
      {DnsServer::kStrange, ErrorCode::TIMEOUT}, {DnsServer::kAlias, ErrorCode::NOT_FOUND},
  };
  SetAddresses({"10.0.0.1", "10.0.0.2"});
  Start(kName, kSelf);
  ASSERT_TRUE(UntilNames({"10.0.0.1", "10.0.0.2"}));
  for (const auto& [manner, code] : wrongs) {
    server_.Behave(manner);
    ASSERT_TRUE(UntilFailed()) << manner;
    EXPECT_EQ(CodeOf(membership_->view()->source), code) << manner << membership_->view()->source;
    EXPECT_THAT(membership_->view()->source.message(), HasSubstr("DNS ckptd.ml.svc.test")) << manner;
    EXPECT_THAT(Names(), ElementsAre("10.0.0.1", "10.0.0.2")) << manner;
    EXPECT_GT(membership_->view()->source_since, Nanos(0));
    server_.Behave(DnsServer::kProper);
    ASSERT_TRUE(Until([&] { return membership_->view()->source.ok(); })) << manner;
  }
  EXPECT_EQ(membership_->view()->number, 1U) << "the members were the same all the time";
}

TEST_F(DnsSourceTest, ANameThatLosesItsRecordsIsAFailureNotAnEmptyCluster) {
  SetAddresses({"10.0.0.1", "10.0.0.2"});
  Start(kName, kSelf);
  ASSERT_TRUE(UntilNames({"10.0.0.1", "10.0.0.2"}));
  SetAddresses({});
  ASSERT_TRUE(UntilFailed());
  EXPECT_EQ(CodeOf(membership_->view()->source), ErrorCode::NOT_FOUND);
  EXPECT_THAT(Names(), ElementsAre("10.0.0.1", "10.0.0.2"));
}

TEST_F(DnsSourceTest, AnUnknownNameIsSaid) {
  Start("nobody.test", kSelf);
  ASSERT_TRUE(UntilFailed());
  EXPECT_THAT(membership_->view()->source.message(), HasSubstr("there is no such name"));
  EXPECT_EQ(membership_->view()->number, 0U);
}

// A worker that still asks has nobody to tell.
TEST_F(DnsSourceTest, GoesWhileAQuestionIsOpen) {
  server_.Behave(DnsServer::kSilent);
  Start(kName, kSelf);
  ASSERT_TRUE(Until([&] { return server_.questions() > 0; }));
  membership_.reset();
  worker_.Stop();
  EXPECT_TRUE(loop_->RunOnce(Nanos(0)).ok());
}

TEST(DnsSource, ANodeKnowsItsNameBeforeDnsDoes) {
  const auto name = [](const char* node, const char* address, const char* dns) {
    return OwnName(Self{node, address, 9465, {}, 5}, dns);
  };
  EXPECT_EQ(name("pod-b", "10.0.0.2", "nodes.test"), "10.0.0.2");
  EXPECT_EQ(name("pod-b", "FD00:0::2", "nodes.test"), "fd00::2") << "as answers write it";
  EXPECT_EQ(name("pod-b", "", "nodes.test"), "pod-b") << "no member's name: it will be told so";
  EXPECT_EQ(name("Pod-b", "10.0.0.2", "_peers._tcp.nodes.test."), "pod-b.nodes.test");
  EXPECT_EQ(name("pod-b", "Pod-B.elsewhere.test", "_peers._tcp.nodes.test"), "pod-b.elsewhere.test");
  EXPECT_EQ(name("pod-b.test", "x.elsewhere.test", "_peers._tcp.nodes.test"), "pod-b.test");
  EXPECT_EQ(name("pod-b", "", "_peers"), "pod-b");
}

TEST(DnsSource, ItsNameMustBeGiven) {
  auto loop = *Loop::Create(SystemClock(), 4);
  InlineExecutor worker;
  Membership membership(SystemClock(), std::make_unique<DnsSource>(*loop, worker, *Resolver::Create(""),
                                                                   DnsSettings{kSelf, "", seconds(30)}));
  EXPECT_EQ(CodeOf(membership.Start()), ErrorCode::INVALID_ARGUMENT);
}

TEST(ResolverOf, TheServerIsAnAddressAndAPort) {
  for (const char* wrong : {"x", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "name:53", "[::1]:53", ":53"})
    EXPECT_EQ(CodeOf(Resolver::Create(wrong).status()), ErrorCode::INVALID_ARGUMENT) << wrong;
  EXPECT_TRUE(Resolver::Create("10.0.0.1:53").ok());
}

}  // namespace
}  // namespace ckptd::membership
