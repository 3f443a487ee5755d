// One job on several nodes: real agents that speak over real sockets, one storage. Processes, agents and nodes are
// killed, paused and cut off.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/integration/cluster.h"

namespace ckptd::harness {
namespace {

constexpr char kForever[] = "--every 5 --step-ms 5 --steps 100000";
constexpr uint64_t kRegion = 1;  // where a snapshot was read from
constexpr uint64_t kStorage = 2;

class NodesTest : public testing::Test {
 protected:
  void Make(const ClusterOptions& options) {
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  }
  // Trains until every rank has told of `captures` common captures.
  Ranks TrainUntilCaptured(const std::vector<size_t>& where, int captures = 2) {
    Ranks ranks = cluster_->Train(where, kForever);
    for (auto& rank : ranks) {
      for (int i = 0; i < captures; ++i) EXPECT_TRUE(rank->WaitFor("CAPTURED")) << rank->Errors() << cluster_->Logs();
    }
    return ranks;
  }
  // Runs on to the end; what every rank restored must be one step, which is returned, and its state the right one.
  uint64_t TrainToTheEnd(const std::vector<size_t>& where, uint64_t steps, uint64_t source = 0) {
    const std::string line = "--every 5 --step-ms 5 --steps " + std::to_string(steps);
    Ranks ranks = cluster_->Train(where, line);
    uint64_t step = 0;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const std::string restored = Restored(*ranks[i]);
      if (i == 0) step = NumberField(restored, "step");
      EXPECT_EQ(NumberField(restored, "step"), step) << "rank " << i << cluster_->Logs();
      if (source != 0) {
        EXPECT_EQ(NumberField(restored, "source"), source) << restored;
      }
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      EXPECT_EQ(ranks[i]->Wait(), 0) << "rank " << i << ": " << ranks[i]->Errors() << cluster_->Logs();
      EXPECT_EQ(ranks[i]->lines().back(),
                cluster_->node(where[i]).ExpectedDigest(
                    Args("--world " + std::to_string(where.size()) + " --rank " + std::to_string(i) + " " + line)));
    }
    return step;
  }

  std::unique_ptr<Cluster> cluster_;
};

TEST_F(NodesTest, AJobOnTwoNodesGoesOnFromMemory) {
  ASSERT_NO_FATAL_FAILURE(Make({}));
  Ranks ranks = TrainUntilCaptured({0, 1, 0, 1});
  const Said said = cluster_->Ctl(0, "status");
  EXPECT_TRUE(said.Has("peers    2 nodes by static; this one is node-a, linked to 1\n")) << said;
  KillAll(ranks);
  const uint64_t captured = LastOf(ranks, "CAPTURED");
  EXPECT_GE(TrainToTheEnd({0, 1, 0, 1}, LastOf(ranks, "STEP") + 30, kRegion), captured);
}

// The number of node a's next start will be above this.
void SetStarts(Node& node, uint64_t number) {
  char name[40];
  (void)std::snprintf(name, sizeof name, "incarnation-%020lu", number);
  std::filesystem::remove_all(node.base() + "/state");
  std::filesystem::create_directory(node.base() + "/state");
  std::ofstream(node.base() + "/state/" + name).flush();
}

// Its disk is lost and its clock is behind: the same as a number ahead of the clock that is lost. Nobody can tell it
// from an old process that wakes up, so an operator must.
TEST_F(NodesTest, ANodeThatForgotItsNumberAndTheTimeIsRefusedAndToldWhatToDo) {
  cluster_ = std::make_unique<Cluster>(ClusterOptions{});
  Node& node = cluster_->node(0);
  SetStarts(node, 10'000'000'000);
  ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  Ranks ranks = TrainUntilCaptured({0, 1});
  KillAll(ranks);
  ASSERT_EQ(node.StopAgent(), 0);
  std::filesystem::remove_all(node.base() + "/state");
  ASSERT_TRUE(node.StartAgent()) << cluster_->Logs();
  Ranks refused = cluster_->Train({0, 1}, "--job other --restore-ms 30000 --steps 5");
  const Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("was here already"); });
  EXPECT_TRUE(
      said.Has("generation 10000000001 was here already; stop it, if it is an older process of that name; "
               "if its clock was behind when it started without its agent.state_dir, set the clock and"))
      << said << cluster_->Logs();
  EXPECT_TRUE(said.Has("of one name the process that was started last is believed")) << said;
  EXPECT_EQ(said.code, 1) << said;
  KillAll(refused);
  ASSERT_EQ(node.StopAgent(), 0);
  SetStarts(node, 10'000'000'001);  // as a clock that is right again
  ASSERT_TRUE(node.StartAgent()) << cluster_->Logs();
  ranks = TrainUntilCaptured({0, 1});
  EXPECT_TRUE(
      cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("linked to 1\n"); }).Has("linked to 1\n"));
  KillAll(ranks);
}

TEST_F(NodesTest, EveryNodeTellsOfTheJobWhatItsCoordinatorKnows) {
  ASSERT_NO_FATAL_FAILURE(Make({}));
  Ranks ranks = TrainUntilCaptured({0, 1});
  for (size_t node : {0, 1}) {
    const Said flushed = cluster_->Ctl(node, "flush trainer --wait");
    EXPECT_EQ(flushed.code, 0) << flushed;
    EXPECT_TRUE(flushed.Has("durable")) << flushed;
    const Said said = cluster_->Ctl(node, "status -o json");
    EXPECT_TRUE(said.Has("\"state\": \"RUN\"")) << said;
    EXPECT_TRUE(said.Has("\"world_size\": 2")) << said;
    EXPECT_FALSE(said.Has("\"durable_step\": \"0\"")) << said;
  }
}

TEST_F(NodesTest, AnAgentThatDiesHoldsUpNobodyForLong) {
  ASSERT_NO_FATAL_FAILURE(Make({}));
  Ranks ranks = TrainUntilCaptured({0, 1});
  for (size_t victim : {1, 0, 1}) {  // of the coordinator, of another
    cluster_->node(victim).KillAgent();
    ASSERT_TRUE(cluster_->node(victim).StartAgent()) << cluster_->Logs();
    const uint64_t before = LastOf(ranks, "CAPTURED");
    for (auto& rank : ranks) {
      while (rank->Last("CAPTURED") <= before)
        ASSERT_TRUE(rank->WaitFor("CAPTURED")) << rank->Errors() << cluster_->Logs();
    }
  }
  KillAll(ranks);
  const uint64_t captured = LastOf(ranks, "CAPTURED");
  EXPECT_GE(TrainToTheEnd({0, 1}, LastOf(ranks, "STEP") + 30, kRegion), captured);
}

// Of the job's memory one part is gone for good: all ranks take the newest step that storage has whole.
TEST_F(NodesTest, ALostNodeIsReplacedByASpareFromStorage) {
  ASSERT_NO_FATAL_FAILURE(Make({.nodes = 3, .settings = {{"agent.decide_timeout", Quoted("2s")}}, .more = {}}));
  Ranks ranks = cluster_->Train({0, 1}, kForever);
  for (auto& rank : ranks) ASSERT_TRUE(rank->WaitFor("DURABLE")) << rank->Errors() << cluster_->Logs();
  cluster_->node(1).KillAgent();
  KillAll(ranks);
  cluster_->node(1).LoseRegion();
  const uint64_t durable = LastOf(ranks, "DURABLE");
  const uint64_t end = LastOf(ranks, "STEP") + 30;
  EXPECT_GE(TrainToTheEnd({0, 2}, end), durable) << cluster_->Logs();
  const Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("node node-b is not reached"); });
  EXPECT_TRUE(said.Has("node node-b is not reached")) << said;
  EXPECT_EQ(said.code, 1) << said;
}

TEST_F(NodesTest, RankZeroMovesAndWithItTheCoordinator) {
  ASSERT_NO_FATAL_FAILURE(Make({}));
  Ranks ranks = TrainUntilCaptured({0, 1});
  for (auto& rank : ranks) ASSERT_TRUE(rank->Last("DURABLE") != 0 || rank->WaitFor("DURABLE")) << cluster_->Logs();
  KillAll(ranks);
  const uint64_t durable = LastOf(ranks, "DURABLE");
  const uint64_t end = LastOf(ranks, "STEP") + 30;
  EXPECT_GE(TrainToTheEnd({1, 0}, end), durable);
  EXPECT_TRUE(cluster_->Ctl(0, "status -o json").Has("\"coordinator\": \"node-b\""))
      << cluster_->Ctl(0, "status -o json");
}

// The coordinator's process stands still; nobody is told anything wrong, and when it goes on so does the job.
TEST_F(NodesTest, AnAgentThatIsPausedStopsNoTraining) {
  ASSERT_NO_FATAL_FAILURE(Make({}));
  Ranks ranks = TrainUntilCaptured({0, 1});
  kill(cluster_->node(0).agent()->pid(), SIGSTOP);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(ranks[1]->WaitFor("STEP")) << "training waits for another node's agent";
  kill(cluster_->node(0).agent()->pid(), SIGCONT);
  const uint64_t before = LastOf(ranks, "CAPTURED");
  for (auto& rank : ranks) {
    while (rank->Last("CAPTURED") <= before)
      ASSERT_TRUE(rank->WaitFor("CAPTURED")) << rank->Errors() << cluster_->Logs();
  }
}

// Its answers as one that has nothing are numbered with those of its ranks.
TEST_F(NodesTest, ARankIsHeardWhereTheAgentHasLongAnsweredForOthersJobs) {
  ASSERT_NO_FATAL_FAILURE(Make({.nodes = 2, .settings = {{"peers.copies", "1"}}, .more = {}}));
  auto other = cluster_->node(0).Train(Args("--job other --every 1 --step-ms 1 --steps 100000"));
  while (other->Last("CAPTURED") < 300) ASSERT_TRUE(other->WaitFor("CAPTURED")) << other->Errors() << cluster_->Logs();
  const std::string line = "--world 2 --steps 20 --every 5 --restore-ms 20000 --rank ";
  auto zero = cluster_->node(0).Train(Args(line + "0"));
  sleep(2);  // the agent of rank 1 has answered by now
  auto one = cluster_->node(1).Train(Args(line + "1"));
  EXPECT_EQ(one->Wait(), 0) << one->Errors() << cluster_->Logs();
  EXPECT_EQ(zero->Wait(), 0) << zero->Errors();
}

// Node c is a member and has no rank: it is asked, and says that it has nothing.
TEST_F(NodesTest, ANodeWithoutRanksIsNotWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(Make({.nodes = 3, .settings = {{"agent.decide_timeout", Quoted("60s")}}, .more = {}}));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(TrainToTheEnd({0, 1}, 20), 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(FilesWith(cluster_->node(2).region(), "trainer"), std::vector<std::string>()) << "nothing is made for it";
}

TEST_F(NodesTest, ARankOfAnotherUserIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_NO_FATAL_FAILURE(Make({.nodes = 2, .settings = {{"security.socket_mode", Quoted("0666")}}, .more = {}}));
  auto zero = cluster_->node(0).Train(Args("--world 2 --rank 0 --steps 20"));
  auto one = cluster_->node(1).Train(Args("--world 2 --rank 1 --steps 20"), AsUser("61234", "61234"));
  EXPECT_EQ(one->Wait(), 1);
  EXPECT_NE(one->Errors().find("job trainer runs for uid 0 on agent node-a"), std::string::npos)
      << one->Errors() << cluster_->Logs();
}

TEST_F(NodesTest, APortThatIsTakenStopsNoTraining) {
  ASSERT_NO_FATAL_FAILURE(Make({.nodes = 1, .settings = {}, .more = {}}));
  NodeOptions options;
  options.settings = {{"agent.node_name", Quoted("node-a")},
                      {"agent.admin_socket", Quoted(cluster_->dir() + "/second")},
                      {"peers.members", Quoted("node-a address=" + cluster_->AddressOf(0) + ":9465")},
                      {"peers.address", Quoted(cluster_->AddressOf(0))},
                      {"peers.tls", Quoted("plaintext-on-loopback")}};
  Node second(options);
  ASSERT_TRUE(second.StartAgent()) << second.AgentLog();
  auto trainer = second.Train(Args("--steps 20 --every 5 --step-ms 20"));
  EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors() << second.AgentLog();
  EXPECT_NE(second.AgentLog().find("cannot listen for other nodes at " + cluster_->AddressOf(0)), std::string::npos)
      << second.AgentLog();
  EXPECT_EQ(cluster_->node(0).StopAgent(), 0);
  for (int i = 0; i < 100 && second.AgentLog().find("peers.listening") == std::string::npos; ++i) usleep(100'000);
  EXPECT_NE(second.AgentLog().find("peers.listening"), std::string::npos) << second.AgentLog();
}

}  // namespace
}  // namespace ckptd::harness
