#include "daemon/app/peers.h"

#include <gtest/gtest.h>

#include <string>

#include "daemon/base/clock.h"
#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"

namespace ckptd {
namespace {

class PeersTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Peers>> Start(const PeersConfig& config, const std::string& node = "n1") {
    return Peers::Start(*loop_, SystemClock(), PosixFiles(), config, node);
  }
  // What --check-config says is what a start says.
  std::string ErrorOf(const PeersConfig& config) {
    const absl::Status checked = Peers::Check(SystemClock(), PosixFiles(), config, "n1");
    EXPECT_EQ(Start(config).status(), checked);
    return std::string(checked.message());
  }

  std::unique_ptr<Loop> loop_ = *Loop::Create(SystemClock(), 64);
};

TEST_F(PeersTest, WithoutSettingsANodeIsAloneWhateverItsHostIsCalled) {
  for (auto [host, name] : {std::pair<const char*, const char*>{"n1", "n1"},
                            {"(none)", "none-"},
                            {"--", "node"},
                            {"", "node"},
                            {"a b\xff", "a-b-"},
                            {"gpu_7.ml", "gpu_7.ml"}}) {
    auto peers = Start({}, host);
    ASSERT_TRUE(peers.ok()) << host << ": " << peers.status();
    EXPECT_TRUE((*peers)->Problems().empty()) << host;
    v1::PeersStatus said;
    (*peers)->Fill(&said);
    EXPECT_EQ(said.membership(), "static");
    EXPECT_EQ(said.self(), name);
    EXPECT_TRUE(said.speaks());
    EXPECT_TRUE(said.source_ok());
    ASSERT_EQ(said.members_size(), 1) << host;
    EXPECT_EQ(said.members(0).name(), name);
  }
}

TEST_F(PeersTest, AWrongSettingIsNamed) {
  PeersConfig labels;
  labels.labels = "rack";
  EXPECT_NE(ErrorOf(labels).find("rack"), std::string::npos) << ErrorOf(labels);
  PeersConfig list;
  list.members = "n[2-3]";
  EXPECT_NE(ErrorOf(list).find("agent.node_name"), std::string::npos) << ErrorOf(list);
  PeersConfig dns;
  dns.membership = MembershipChoice::kDns;
  dns.dns_name = "x";
  dns.dns_server = "nowhere";
  EXPECT_NE(ErrorOf(dns).find("nowhere"), std::string::npos) << ErrorOf(dns);
  PeersConfig etcd;
  etcd.membership = MembershipChoice::kEtcd;
  etcd.etcd_endpoints = "ftp://e1:1";
  EXPECT_NE(ErrorOf(etcd).find("etcd"), std::string::npos) << ErrorOf(etcd);  // its address, or a build without gRPC
}

TEST_F(PeersTest, StatusListsAsManyAsAnAnswerHolds) {
  PeersConfig config;
  config.members = "n[1-9999] rack=r1";
  auto peers = Start(config);
  ASSERT_TRUE(peers.ok()) << peers.status();
  v1::PeersStatus said;
  (*peers)->Fill(&said);
  EXPECT_EQ(said.member_count(), 9999u);
  EXPECT_EQ(said.members_size(), 1000);
  EXPECT_LT(said.ByteSizeLong(), size_t{1} << 19);
}

// Nobody listens there: the agent starts, and says what is wrong.
TEST_F(PeersTest, ASourceThatDoesNotAnswerIsAProblemAndNoError) {
  PeersConfig config;
  config.membership = MembershipChoice::kDns;
  config.dns_name = "nobody.invalid";
  config.dns_server = "127.0.0.1:1";
  auto peers = Start(config);
  ASSERT_TRUE(peers.ok()) << peers.status();
  const std::vector<Peers::Problem> problems = (*peers)->Problems();
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_EQ(std::string(problems[0].what.message()).rfind("peers: this node: ", 0), 0u) << problems[0].what;
}

}  // namespace
}  // namespace ckptd
