// Real agents that find each other: by a real etcd that is killed and paused, and by a list. What an operator is told,
// and how a job on two nodes fares meanwhile.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "daemon/membership/testing/etcd_server.h"
#include "daemon/os/testing/mounted_dir.h"
#include "tests/integration/cluster.h"

namespace ckptd::harness {
namespace {

class PeersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ckptd-peers-XXXXXX";
    dir_ = mkdtemp(name);
  }
  void TearDown() override {
    nodes_.clear();
    std::filesystem::remove_all(dir_);
  }

  [[nodiscard]] std::string Admin(size_t number) const { return dir_ + "/" + std::to_string(number); }
  static std::string NameOf(size_t number) { return std::string("node-") + static_cast<char>('a' + number); }

  Node& Add(const std::map<std::string, std::string>& settings) {
    const size_t number = nodes_.size();
    NodeOptions options;
    options.settings = settings;
    options.settings["agent.admin_socket"] = Quoted(Admin(number));
    options.settings["agent.node_name"] = Quoted(NameOf(number));
    nodes_.push_back(std::make_unique<Node>(options));
    return *nodes_.back();
  }
  Node& AddByEtcd(const membership::EtcdServer& etcd) {
    return Add({{"peers.membership", Quoted("etcd")},
                {"peers.etcd_endpoints", Quoted(etcd.endpoint())},
                {"peers.etcd_ttl", Quoted("2s")},
                {"peers.labels", Quoted("rack=r" + std::to_string(nodes_.size()))}});
  }

  Said Status(size_t number, const std::string& more = "") {
    std::vector<std::string> argv = {BinaryDirectory() + "/ckptctl", "status"};
    for (const std::string& word : Args(more)) argv.push_back(word);
    Child child({argv, {"CKPTD_ADMIN_SOCKET=" + Admin(number), "NO_COLOR=1"}, dir_ + "/stderr"});
    Said said;
    said.code = child.Wait();
    for (const std::string& line : child.lines()) said.out += line + "\n";
    return said;
  }
  // Asks until it is said, for 30 s at most; what was said last.
  Said Await(size_t number, const std::function<bool(const Said&)>& said_so) {
    Said said = Status(number);
    for (int i = 0; i < 300 && !said_so(said); ++i) {
      usleep(100'000);
      said = Status(number);
    }
    return said;
  }
  void ExpectNodes(size_t number, size_t count) {
    const std::string text = "peers    " + std::to_string(count) + (count == 1 ? " node by etcd" : " nodes by etcd");
    const Said said = Await(number, [&](const Said& each) { return each.code == 0 && each.Has(text); });
    EXPECT_TRUE(said.Has(text)) << text << "\n" << said << nodes_[number]->AgentLog();
    EXPECT_EQ(said.code, 0) << said;
  }
  uint64_t Generation(size_t number) {
    const Said said = Status(number);
    const size_t at = said.out.find("generation ");
    return at == said.out.npos ? 0 : strtoull(said.out.c_str() + at + 11, nullptr, 10);
  }

  std::string dir_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

TEST_F(PeersTest, AloneNothingIsSaidOfPeers) {
  ASSERT_TRUE(Add({}).StartAgent());
  const Said said = Status(0);
  EXPECT_EQ(said.code, 0) << said;
  EXPECT_FALSE(said.Has("peers")) << said;
  EXPECT_TRUE(Status(0, "-o json").Has("\"membership\": \"static\"")) << said;
}

TEST_F(PeersTest, AList) {
  Node& node = Add({{"peers.members", Quoted("node-a rack=r1; node-c rack=r2")}});
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  const Said said = Status(0);
  EXPECT_EQ(said.code, 0) << said;
  EXPECT_TRUE(said.Has("peers    2 nodes by static; this one is node-a\n")) << said;
  const Said json = Status(0, "-o json");
  EXPECT_TRUE(json.Has("\"address\": \"node-c:9465\"")) << json;
  EXPECT_TRUE(json.Has("\"rack\": \"r2\"")) << json;
}

TEST_F(PeersTest, AListWithoutThisNodeIsRefused) {
  Node& node = Add({{"peers.members", Quoted("other")}});
  EXPECT_FALSE(node.StartAgent());
  EXPECT_NE(node.AgentLog().find("node-a"), std::string::npos) << node.AgentLog();
  EXPECT_NE(node.AgentLog().find("peers.members"), std::string::npos) << node.AgentLog();
}

TEST_F(PeersTest, CheckConfigFindsWhatAStartWould) {
  Node& wrong = Add({{"peers.members", Quoted("other")}});
  Child bad(
      {{BinaryDirectory() + "/ckptd", "--check-config", "--config", wrong.base() + "/ckptd.toml"}, {}, dir_ + "/bad"});
  EXPECT_EQ(bad.Wait(), 2);
  Node& right = Add({{"peers.members", Quoted("other; node-b")}});
  Child good(
      {{BinaryDirectory() + "/ckptd", "--check-config", "--config", right.base() + "/ckptd.toml"}, {}, dir_ + "/good"});
  EXPECT_EQ(good.Wait(), 0);
}

// As Kubernetes mounts it; a reload takes what the links lead to then.
TEST_F(PeersTest, AConfigurationMayBeALink) {
  Node& node = Add({{"retention.keep_last", "7"}});
  const std::string file = node.base() + "/ckptd.toml";
  for (const char* each : {"old", "new"}) std::filesystem::create_directory(dir_ + "/" + each);
  std::string text = FileContent(file);
  std::ofstream(dir_ + "/old/ckptd.toml") << text;
  const size_t at = text.find("keep_last = 7");
  ASSERT_NE(at, text.npos);
  std::ofstream(dir_ + "/new/ckptd.toml") << text.replace(at, 13, "keep_last = 8");
  const MountedDir mounted({"ckptd.toml"}, dir_ + "/old");
  std::filesystem::remove(file);
  std::filesystem::create_symlink(mounted.PathOf("ckptd.toml"), file);
  Child check({{BinaryDirectory() + "/ckptd", "--check-config", "--config", file}, {}, dir_ + "/check"});
  EXPECT_EQ(check.Wait(), 0) << check.Errors();
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  mounted.Switch(dir_ + "/new");
  node.agent()->Signal(SIGHUP);
  const auto applied = [&] {
    return node.AgentLog().find("config.applied key=retention.keep_last") != std::string::npos;
  };
  for (int i = 0; i < 300 && !applied(); ++i) usleep(100'000);
  EXPECT_TRUE(applied()) << node.AgentLog();
  EXPECT_EQ(node.StopAgent(), 0);
}

// A question to it is open for 6 s and more.
TEST_F(PeersTest, ADnsServerThatIsSilentDoesNotKeepAnAgentFromEnding) {
  const int silent = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(silent, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(getsockname(silent, reinterpret_cast<sockaddr*>(&address), &length), 0);
  Node& node = Add({{"peers.membership", Quoted("dns")},
                    {"peers.dns_name", Quoted("nodes.test")},
                    {"peers.dns_server", Quoted("127.0.0.1:" + std::to_string(ntohs(address.sin_port)))}});
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(node.StopAgent(), 0) << node.AgentLog();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(4500));
  close(silent);
}

TEST_F(PeersTest, ANodeThatDiesIsNoMemberWhenItsLeaseIsOver) {
  if (membership::EtcdProgram().empty()) GTEST_SKIP() << membership::kNoEtcd;
  const membership::EtcdServer etcd;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(AddByEtcd(etcd).StartAgent());
  for (size_t i = 0; i < 3; ++i) ExpectNodes(i, 3);
  EXPECT_TRUE(Status(0, "-o json").Has("\"rack\": \"r2\""));
  nodes_[2]->KillAgent();
  ExpectNodes(0, 2);
  ExpectNodes(1, 2);
  ASSERT_TRUE(nodes_[2]->StartAgent());
  for (size_t i = 0; i < 3; ++i) ExpectNodes(i, 3);
}

TEST_F(PeersTest, ANodeThatWasPausedComesBackAsALaterOne) {
  if (membership::EtcdProgram().empty()) GTEST_SKIP() << membership::kNoEtcd;
  const membership::EtcdServer etcd;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(AddByEtcd(etcd).StartAgent());
  for (size_t i = 0; i < 2; ++i) ExpectNodes(i, 2);
  const uint64_t before = Generation(1);
  EXPECT_NE(before, 0u);
  kill(nodes_[1]->agent()->pid(), SIGSTOP);
  ExpectNodes(0, 1);
  kill(nodes_[1]->agent()->pid(), SIGCONT);
  for (size_t i = 0; i < 2; ++i) ExpectNodes(i, 2);
  EXPECT_GT(Generation(1), before);
}

// Training and its checkpoints do not need etcd.
TEST_F(PeersTest, WithoutEtcdTheLastViewStaysAndTrainingGoesOn) {
  if (membership::EtcdProgram().empty()) GTEST_SKIP() << membership::kNoEtcd;
  membership::EtcdServer etcd;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(AddByEtcd(etcd).StartAgent());
  for (size_t i = 0; i < 2; ++i) ExpectNodes(i, 2);
  etcd.Kill();
  const Said said = Await(0, [](const Said& each) { return each.code == 1; });
  EXPECT_EQ(said.code, 1) << said;
  EXPECT_TRUE(said.Has("peers    2 nodes by etcd")) << said;
  EXPECT_TRUE(said.Has("not heard for")) << said;
  EXPECT_TRUE(said.Has("problem  peers: ")) << said;
  EXPECT_TRUE(said.Has("next: the last members stay and jobs go on")) << said;
  auto trainer = nodes_[0]->Train(Args("--steps 20 --every 5 --step-ms 40"));
  EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors() << nodes_[0]->AgentLog();
  EXPECT_EQ(trainer->Last("DURABLE"), 20u);
  etcd.Start();
  for (size_t i = 0; i < 2; ++i) ExpectNodes(i, 2);
}

// Agents that speak to each other and know of each other by etcd.
class EtcdJobTest : public ::testing::Test {
 protected:
  // Two nodes, and a third of the second one's name, which is not started.
  void SetUp() override {
    Make(3, [](size_t number) { return Cluster::NameOf(std::min<size_t>(number, 1)); });
    if (!IsSkipped() && !HasFatalFailure()) Start(2);
  }
  void Make(size_t nodes, const std::function<std::string(size_t number)>& name) {
    if (membership::EtcdProgram().empty()) GTEST_SKIP() << membership::kNoEtcd;
    etcd_ = std::make_unique<membership::EtcdServer>();
    ClusterOptions options;
    options.nodes = nodes;
    options.settings = {{"peers.membership", Quoted("etcd")},
                        {"peers.members", Quoted("")},
                        {"peers.etcd_endpoints", Quoted(etcd_->endpoint())},
                        {"peers.etcd_ttl", Quoted("3s")},
                        {"agent.log_level", Quoted("debug")}};
    options.more = [name](size_t number) {
      return std::map<std::string, std::string>{{"agent.node_name", Quoted(name(number))}};
    };
    cluster_ = std::make_unique<Cluster>(options);
  }
  void Start(size_t nodes) {
    for (size_t i = 0; i < nodes; ++i) ASSERT_TRUE(cluster_->node(i).StartAgent()) << cluster_->Logs();
    for (size_t i = 0; i < nodes; ++i) ASSERT_NO_FATAL_FAILURE(AwaitMembers(i, nodes));
  }
  void AwaitMembers(size_t node, size_t count = 2) {
    const std::string text = std::to_string(count) + " nodes by etcd";
    const auto well = [&](const Said& each) { return each.code == 0 && each.Has(text); };
    const Said said = cluster_->AwaitStatus(node, well);
    ASSERT_TRUE(well(said)) << said << cluster_->Logs();
  }
  // Of a step that no rank has come to yet.
  void ExpectCaptures(const Ranks& ranks) {
    for (const auto& rank : ranks) {
      while (rank->NextLine(Millis(0))) {
      }
    }
    const uint64_t now = LastOf(ranks, "STEP");
    for (const auto& rank : ranks) {
      while (rank->Last("CAPTURED") <= now)
        ASSERT_TRUE(rank->WaitFor("CAPTURED")) << "after step " << now << "\n" << rank->Errors() << cluster_->Logs();
    }
  }

  std::unique_ptr<membership::EtcdServer> etcd_;
  std::unique_ptr<Cluster> cluster_;
};

constexpr char kForever[] = "--every 5 --step-ms 5 --steps 100000";

// A static list would not be asked either.
TEST_F(EtcdJobTest, OnTwoNodesGoesOnWhileEtcdIsSilent) {
  Ranks ranks = cluster_->Train({0, 1}, kForever);
  ASSERT_NO_FATAL_FAILURE(ExpectCaptures(ranks));
  etcd_->Stop();
  for (int i = 0; i < 5; ++i) {
    sleep(6);
    ASSERT_NO_FATAL_FAILURE(ExpectCaptures(ranks));
  }
  const Said said = cluster_->Ctl(1, "status");
  EXPECT_EQ(said.code, 1) << said;
  EXPECT_TRUE(said.Has("next: the last members stay and jobs go on")) << said;
  EXPECT_FALSE(said.Has("this node: ")) << said;
  KillAll(ranks);
  const uint64_t captured = LastOf(ranks, "CAPTURED");
  ranks = cluster_->Train({0, 1}, kForever);
  for (const auto& rank : ranks) EXPECT_GE(NumberField(Restored(*rank), "step"), captured) << cluster_->Logs();
  ASSERT_NO_FATAL_FAILURE(ExpectCaptures(ranks));
  etcd_->Continue();
  for (size_t i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(AwaitMembers(i));
  ASSERT_NO_FATAL_FAILURE(ExpectCaptures(ranks));
}

TEST_F(EtcdJobTest, ANodeWhoseNameWasTakenSpeaksNoMore) {
  ASSERT_TRUE(cluster_->node(2).StartAgent()) << cluster_->Logs();
  const auto fenced = [](const Said& each) { return each.Has("another process registered under this name"); };
  const Said said = cluster_->AwaitStatus(1, fenced);
  EXPECT_TRUE(fenced(said)) << said << cluster_->Logs();
  EXPECT_TRUE(said.Has("next: jobs on this node alone go on")) << said;
  for (size_t i : {0, 2}) ASSERT_NO_FATAL_FAILURE(AwaitMembers(i));
  const Ranks ranks = cluster_->Train({0, 2}, kForever);
  ASSERT_NO_FATAL_FAILURE(ExpectCaptures(ranks));
  etcd_->Stop();
  sleep(6);
  ASSERT_NO_FATAL_FAILURE(ExpectCaptures(ranks));
  EXPECT_TRUE(fenced(cluster_->Ctl(1, "status"))) << "nobody can say anything else";
}

class EtcdCopiesTest : public EtcdJobTest {
 protected:
  void SetUp() override {
    Make(4, Cluster::NameOf);
    if (!IsSkipped() && !HasFatalFailure()) Start(4);
  }
  [[nodiscard]] size_t Moved() const {
    const std::string logs = cluster_->Logs();
    size_t count = 0;
    for (size_t at = logs.find("copy.moved"); at != logs.npos; at = logs.find("copy.moved", at + 1)) ++count;
    return count;
  }
  [[nodiscard]] bool IsProtected() { return cluster_->Ctl(0, "status -o json").Has("\"protection_lost\": false"); }
};

// All leases have ended when etcd answers again, and all nodes come back one by one. The job stands still: whatever
// moves then was moved for nothing.
TEST_F(EtcdCopiesTest, NoCopyMovesAfterAnEtcdThatWasCutOffForLongerThanItsLeases) {
  Ranks ranks = cluster_->Train({0, 1, 2, 3}, kForever);
  for (const auto& rank : ranks) {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(rank->WaitFor("PROTECTED")) << rank->Errors() << cluster_->Logs();
  }
  for (const auto& rank : ranks) rank->Signal(SIGSTOP);
  sleep(3);
  ASSERT_TRUE(IsProtected()) << cluster_->Ctl(0, "status -o json");
  const size_t moved = Moved();
  ASSERT_GT(moved, 0u);
  etcd_->Stop();
  sleep(8);
  etcd_->Continue();
  for (size_t i = 0; i < 4; ++i) ASSERT_NO_FATAL_FAILURE(AwaitMembers(i, 4));
  sleep(14);
  EXPECT_EQ(Moved(), moved) << cluster_->Logs();
  EXPECT_NE(cluster_->Logs().find("is no member any more"), std::string::npos) << cluster_->Logs();
  EXPECT_TRUE(IsProtected()) << cluster_->Ctl(0, "status -o json");
}

}  // namespace
}  // namespace ckptd::harness
