// Snapshots that other nodes hold: a node is lost with everything on it, and the job goes on from memory. Real agents
// over real sockets; what storage has is kept out of it by flush_every, so that a step can come from memory only.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "tests/integration/copies_fixture.h"

namespace ckptd::harness {
namespace {

// A list that says no failure domains: each node tells its own. By names alone a and c would hold for each other.
TEST_F(CopiesTest, HoldersAreChosenApartByWhatNodesSayOfThemselves) {
  ClusterOptions options{4, MemoryOnly(), {}};
  options.settings["agent.log_level"] = Quoted("debug");
  options.more = [](size_t number) {
    return std::map<std::string, std::string>{{"peers.labels", Quoted(number % 2 == 0 ? "rack=even" : "rack=odd")}};
  };
  cluster_ = std::make_unique<Cluster>(options);
  ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  Ranks ranks = TrainUntilProtected({0, 1, 2, 3});
  KillAll(ranks);
  for (size_t i = 0; i < 4; ++i) {
    const std::string log = cluster_->node(i).AgentLog();
    EXPECT_NE(log.find("op=copy.moved"), std::string::npos) << cluster_->Logs();
    for (size_t at = log.find("op=copy.moved"); at != log.npos; at = log.find("op=copy.moved", at + 1)) {
      const size_t holder = log.find("holder=node-", at) + 12;
      EXPECT_NE((log[holder] - 'a') % 2, static_cast<int>(i % 2)) << log.substr(at, log.find('\n', at) - at);
    }
  }
  EXPECT_TRUE(cluster_->Ctl(0, "status -o json").Has("\"rack\": \"odd\"")) << cluster_->Ctl(0, "status -o json");
}

TEST_F(CopiesTest, ALostNodeComesBackFromItsCopies) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  ASSERT_NO_FATAL_FAILURE(ComesBackWithout(2, 1));
}

TEST_F(CopiesTest, WhoCameBackIsProtectedAgainAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  ASSERT_NO_FATAL_FAILURE(IsProtectedAgainAtOnceWithout(2, 1));
}

// Chunk by chunk, while it is captured; what was sent so comes back like everything.
TEST_F(CopiesTest, ACaptureIsOnItsWayBeforeItIsSealed) {
  std::map<std::string, std::string> settings = MemoryOnly();
  settings["region.chunk_bytes"] = Quoted("64 KiB");
  settings["agent.log_level"] = Quoted("debug");
  ASSERT_NO_FATAL_FAILURE(Make(3, settings));
  const std::string large = " --bytes 16000000";
  Ranks ranks = cluster_->Train({0, 1}, kForever + large);
  AwaitProtected(ranks, 6);
  LoseNode(1);
  KillAll(ranks);
  const uint64_t early = MostEarly(cluster_->Logs());
  printf("of %d chunks, %lu were sent early at best\n", 16000000 / 65536 + 1, early);
  EXPECT_GT(early, 1u) << cluster_->Logs();
  const std::string line = LineTo(LastOf(ranks, "STEP") + 30) + large;
  const Ranks again = cluster_->Train({0, 2}, line);
  const Rest rest = Finish(again, {0, 2}, line);
  EXPECT_GE(rest.step, LastOf(ranks, "PROTECTED"));
  EXPECT_THAT(rest.sources, testing::ElementsAre(kRegion, kReplica));
}

// Rank 0's: with it the coordinator.
TEST_F(CopiesTest, TheCoordinatorsNodeTooComesBackFromItsCopies) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  ASSERT_NO_FATAL_FAILURE(ComesBackWithout(2, 0));
}

// Ranks change their nodes: each finds its snapshot on the one where it ran.
TEST_F(CopiesTest, RanksThatMoveFindTheirSnapshotsWhereTheyWere) {
  ASSERT_NO_FATAL_FAILURE(Make(2));
  Ranks ranks = TrainUntilProtected({0, 1});
  KillAll(ranks);
  const uint64_t promised = LastOf(ranks, "PROTECTED");
  const Rest rest = TrainToTheEnd({1, 0}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, promised) << cluster_->Logs();
  EXPECT_EQ(rest.sources, (std::vector<uint64_t>{kReplica, kReplica}));
}

// A spare takes the last rank and the others move up. Each node has memory for one rank and what it holds for another:
// what the rank that left it has there makes room for the one that came.
TEST_F(CopiesTest, RanksThatMoveUpFindRoomWhereOthersLeft) {
  std::map<std::string, std::string> settings = MemoryOnly();
  settings["region.size"] = Quoted("44MiB");
  ASSERT_NO_FATAL_FAILURE(Make(4, settings));
  const std::string large = " --bytes 8000000";
  Ranks ranks = cluster_->Train({0, 1, 2}, kForever + large);
  ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks, 2));
  LoseNode(1);
  KillAll(ranks);
  const uint64_t promised = LastOf(ranks, "PROTECTED");
  const std::string line = LineTo(LastOf(ranks, "STEP") + 30) + large;
  const Ranks again = cluster_->Train({0, 2, 3}, line);
  EXPECT_GE(Finish(again, {0, 2, 3}, line).step, promised) << cluster_->Logs();
  EXPECT_EQ(FilesWith(cluster_->node(2).region(), "/rank-00002/").size(), 0u) << "no attempt needs it any more";
}

// Rank 0 alone began an attempt that nobody decides. What was captured before it is still flushed when it is asked for,
// by an operator or by the end of the agent, and the next restore() finds it on storage.
TEST_F(CopiesTest, AnAttemptThatNobodyDecidesKeepsNothingFromStorage) {
  ASSERT_NO_FATAL_FAILURE(Make(2));
  Ranks ranks = TrainUntilProtected({0, 1});
  KillAll(ranks);
  const uint64_t promised = LastOf(ranks, "PROTECTED");
  auto alone = cluster_->node(0).Train(Args("--world 2 --rank 0 --restore-ms 3000 --steps 10"));
  EXPECT_EQ(alone->Wait(), 1);
  EXPECT_NE(alone->Errors().find("RANKS_MISSING"), std::string::npos) << alone->Errors();

  const Said flush = cluster_->Ctl(0, "flush trainer");
  EXPECT_TRUE(flush.Has(" is not durable yet; it waits for ")) << flush;
  const Said drain = cluster_->Ctl(0, "drain");
  EXPECT_TRUE(drain.Has(" is not durable yet; it waits for the next restore()")) << drain;
  EXPECT_EQ(drain.code, 1) << drain;
  EXPECT_EQ(cluster_->node(1).StopAgent(), 0);
  EXPECT_NE(cluster_->node(1).AgentLog().find("flushed=all"), std::string::npos) << cluster_->Logs();

  cluster_->node(0).KillAgent();
  for (const size_t i : {0, 1}) {
    cluster_->node(i).LoseRegion();
    ASSERT_TRUE(cluster_->node(i).StartAgent()) << cluster_->Logs();
  }
  const Rest rest = TrainToTheEnd({0, 1}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, promised) << cluster_->Logs();
  EXPECT_EQ(rest.sources, (std::vector<uint64_t>{kStorage, kStorage}));
}

// Both nodes have the step that all ranks loaded, and the next save is far away.
TEST_F(CopiesTest, WhereARankWasBeforeNobodyComplains) {
  ASSERT_NO_FATAL_FAILURE(Make(2));
  Ranks ranks = TrainUntilProtected({0, 1});
  KillAll(ranks);
  ranks = cluster_->Train({1, 0}, "--every 100000 --step-ms 5 --steps 100000");
  for (const auto& rank : ranks) EXPECT_EQ(NumberField(Restored(*rank), "source"), kReplica);
  const auto is_protected = [](const Said& said) { return said.code == 0 && said.Has("  on 2 nodes\n"); };
  for (const size_t node : {0, 1}) {
    Said said = cluster_->AwaitStatus(node, is_protected);
    for (int i = 0; i < 20 && is_protected(said); ++i) {
      usleep(100'000);
      said = cluster_->Ctl(node, "status");
    }
    EXPECT_TRUE(is_protected(said)) << "node " << node << said << cluster_->Logs();
  }
  KillAll(ranks);
}

// All agents die and come back: what they hold for each other is adopted as their own slots are.
TEST_F(CopiesTest, CopiesOutliveTheAgentsThatHoldThem) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  Ranks ranks = TrainUntilProtected({0, 1});
  for (size_t i = 0; i < 3; ++i) cluster_->node(i).KillAgent();
  KillAll(ranks);
  cluster_->node(1).LoseRegion();
  for (const size_t i : {0, 2}) ASSERT_TRUE(cluster_->node(i).StartAgent()) << cluster_->Logs();
  const uint64_t promised = LastOf(ranks, "PROTECTED");
  const Rest rest = TrainToTheEnd({0, 2}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, promised) << cluster_->Logs();
  EXPECT_EQ(rest.sources[1], kReplica);
}

// A holder that dies at any point of the exchange, or stands still, stops no training; copies go on when it is back.
class HolderDies : public CopiesTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(At, HolderDies, testing::Values("copy.seal", "copy.sealed"),
                         [](const auto& point) { return std::string(point.param).substr(5); });

TEST_P(HolderDies, AndTheJobIsProtectedAgainWhenItIsBack) {
  cluster_ = std::make_unique<Cluster>(ClusterOptions{2, MemoryOnly(), {}});
  ASSERT_TRUE(cluster_->node(0).StartAgent());
  ASSERT_TRUE(cluster_->node(1).StartAgent({std::string("CKPTD_FAILPOINTS=") + GetParam() + "=kill@2"}));
  Ranks ranks = cluster_->Train({0, 1}, kForever);
  std::unique_ptr<Child> holder = cluster_->node(1).TakeAgent();
  EXPECT_EQ(holder->Wait(), -SIGKILL) << cluster_->Logs();
  const uint64_t before = LastOf(ranks, "PROTECTED");
  ASSERT_TRUE(cluster_->node(1).StartAgent()) << cluster_->Logs();
  while (LastOf(ranks, "PROTECTED") <= before) ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks, 1));
}

// Node 2 replaces node 1, and its agent dies while it fetches the copy of rank 1.
class WhoFetchesDies : public CopiesTest {
 protected:
  inline static const std::string kSize = " --bytes 1000000";
  static std::map<std::string, std::string> SmallChunks() {  // 16 of them

    std::map<std::string, std::string> settings = MemoryOnly();
    settings["region.chunk_bytes"] = Quoted("64 KiB");
    return settings;
  }
  void Dies(const std::string& how, size_t nodes, const std::map<std::string, std::string>& settings) {
    cluster_ = std::make_unique<Cluster>(ClusterOptions{nodes, settings, {}});
    for (size_t i = 0; i < nodes; ++i) {
      std::vector<std::string> environment;
      if (i == 2) environment.push_back("CKPTD_FAILPOINTS=copy.fetch.chunk=" + how);
      ASSERT_TRUE(cluster_->node(i).StartAgent(environment)) << cluster_->Logs();
    }
    Ranks before = cluster_->Train({0, 1}, kForever + kSize);
    AwaitProtected(before, 2);
    LoseNode(1);
    KillAll(before);
    promised_ = LastOf(before, "PROTECTED");
    line_ = LineTo(LastOf(before, "STEP") + 30) + kSize;
    ranks_ = cluster_->Train({0, 2}, line_);
    std::unique_ptr<Child> spare = cluster_->node(2).TakeAgent();
    ASSERT_EQ(spare->Wait(), -SIGKILL) << cluster_->Logs();
  }
  void FetchesAgain() {
    ASSERT_TRUE(cluster_->node(2).StartAgent()) << cluster_->Logs();
    const Rest rest = Finish(ranks_, {0, 2}, line_);
    EXPECT_GE(rest.step, promised_) << cluster_->Logs();
    EXPECT_EQ(rest.sources[1], kReplica) << cluster_->Logs();
  }

  uint64_t promised_ = 0;
  std::string line_;
  Ranks ranks_;
};

// What came in half counts for nothing, and it is fetched anew.
TEST_F(WhoFetchesDies, AtTheFirstChunkAndFetchesAgain) {
  ASSERT_NO_FATAL_FAILURE(Dies("kill", 3, MemoryOnly()));
  ASSERT_NO_FATAL_FAILURE(FetchesAgain());
}

// It had said that it has the chunks before.
TEST_F(WhoFetchesDies, InTheMiddleAndFetchesAgain) {
  ASSERT_NO_FATAL_FAILURE(Dies("kill@4", 3, SmallChunks()));
  ASSERT_NO_FATAL_FAILURE(FetchesAgain());
}

// The slots of what it read in half are free at once for who takes its place.
TEST_F(WhoFetchesDies, AndWhoComesNextIsProtectedAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Dies("kill@4", 4, SmallChunks()));
  KillAll(ranks_);
  ASSERT_NO_FATAL_FAILURE(IsProtectedAgainAtOnce({0, 3}, kForever + kSize));
}

TEST_F(CopiesTest, AHolderThatStandsStillHoldsUpNobody) {
  ASSERT_NO_FATAL_FAILURE(Make(2));
  Ranks ranks = TrainUntilProtected({0, 1});
  kill(cluster_->node(1).agent()->pid(), SIGSTOP);
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(ranks[0]->WaitFor("STEP")) << "training waits for another node's agent";
  kill(cluster_->node(1).agent()->pid(), SIGCONT);
  const uint64_t before = LastOf(ranks, "PROTECTED");
  while (LastOf(ranks, "PROTECTED") <= before) ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks, 1));
}

// The trainer hangs, as in a collective whose peer is gone, and saves nothing more. The holder of its last step is lost
// for good: another one gets it, without a new step; then the trainer's own node may be lost as well.
TEST_F(CopiesTest, AJobThatStandsStillIsProtectedAnewElsewhere) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  Ranks ranks = TrainUntilProtected({0});
  kill(ranks[0]->pid(), SIGSTOP);
  const auto is_protected = [](const Said& said) {
    return said.Has("  on 2 nodes\n") && !said.Has("a part of it is lost");
  };
  Said said = cluster_->AwaitStatus(0, is_protected);
  const size_t holder = FilesWith(cluster_->node(1).region(), "peer-00000").empty() ? 2 : 1;
  const auto lost = std::chrono::steady_clock::now();
  LoseNode(holder);
  said = cluster_->AwaitStatus(0, [&](const Said& each) { return !is_protected(each); });
  ASSERT_FALSE(is_protected(said)) << said;
  for (int i = 0; i < 3 && !is_protected(said); ++i) said = cluster_->AwaitStatus(0, is_protected);
  ASSERT_TRUE(is_protected(said)) << said << cluster_->Logs();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - lost;
  std::printf("re-protected %.1f s after the holder was lost, while the trainer stood still\n", took.count());
  LoseNode(0);
  KillAll(ranks);
  const Rest rest = TrainToTheEnd({3 - holder}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, LastOf(ranks, "PROTECTED")) << cluster_->Logs();
  EXPECT_EQ(rest.sources[0], kReplica);
}

// No node has memory for others: nothing is protected, and that costs training nothing.
TEST_F(CopiesTest, HoldersWithoutMemoryHoldUpNoSave) {
  std::map<std::string, std::string> settings = MemoryOnly();
  settings["peers.memory"] = Quoted("1MiB");
  ASSERT_NO_FATAL_FAILURE(Make(2, std::move(settings)));
  Ranks ranks = cluster_->Train({0, 1}, kForever);
  for (int i = 0; i < 20; ++i) {
    for (const auto& rank : ranks)
      ASSERT_TRUE(rank->WaitFor("CAPTURED")) << "after " << i << " steps" << rank->Errors() << cluster_->Logs();
  }
  EXPECT_EQ(LastOf(ranks, "PROTECTED"), 0u);
}

// The copy is damaged where it lies: noticed while it is read, and storage gives the step before.
TEST_F(CopiesTest, ADamagedCopyIsNoticedAndStorageIsNext) {
  ASSERT_NO_FATAL_FAILURE(Make(3, {{"agent.decide_timeout", Quoted("2s")}}));
  Ranks ranks = cluster_->Train({0, 1}, kForever);
  for (auto& rank : ranks) ASSERT_TRUE(rank->WaitFor("DURABLE")) << rank->Errors() << cluster_->Logs();
  // Two copies: a step may be on storage before it is protected, and then nobody waits for that.
  const auto copies = [&] {
    size_t count = 0;
    const std::string log = cluster_->node(0).AgentLog();
    for (size_t at = log.find("op=copy.complete"); at != std::string::npos; at = log.find("op=copy.complete", at + 1))
      ++count;
    return count;
  };
  for (int i = 0; i < 300 && copies() < 2; ++i) usleep(100'000);
  LoseNode(1);
  KillAll(ranks);
  const uint64_t durable = LastOf(ranks, "DURABLE");
  size_t damaged = 0;
  for (const std::string& file : FilesWith(cluster_->node(0).region(), "peer-00001/slot-")) {
    FlipByte(cluster_->node(0).region() + "/" + file, 5000);
    ++damaged;
  }
  EXPECT_EQ(damaged, 2u);
  const Rest rest = TrainToTheEnd({0, 2}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, durable) << cluster_->Logs();
  EXPECT_EQ(rest.sources[1], kStorage) << cluster_->Logs();
}

TEST_F(CopiesTest, StatusTellsWhatIsProtected) {
  ASSERT_NO_FATAL_FAILURE(Make(2));
  Ranks ranks = TrainUntilProtected({0, 1});
  const Said said = cluster_->Ctl(0, "status -o json");
  EXPECT_TRUE(said.Has("\"captured\": true,\n          \"protected\": true")) << said;
  EXPECT_TRUE(said.Has("\"replica\"")) << said;
  const Said table = cluster_->Ctl(0, "status");
  EXPECT_TRUE(table.Has("  protected step ")) << table;
  EXPECT_TRUE(table.Has("  on 2 nodes\n")) << table;
  EXPECT_EQ(table.code, 0) << table;
}

// Three copies are asked for where there are two nodes: training goes on, and the operator is told.
TEST_F(CopiesTest, TooFewNodesAreAProblemThatIsTold) {
  ASSERT_NO_FATAL_FAILURE(Make(2, {{"peers.copies", "3"}}));
  Ranks ranks = cluster_->Train({0, 1}, kForever);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ranks[0]->WaitFor("CAPTURED")) << cluster_->Logs();
  const Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("peers.copies is 3"); });
  EXPECT_TRUE(said.Has("peers.copies is 3, and there are fewer nodes")) << said;
  EXPECT_EQ(said.code, 1) << said;
}

// A holder without memory for copies: the same.
TEST_F(CopiesTest, AHolderWithoutMemoryIsAProblemThatIsTold) {
  ASSERT_NO_FATAL_FAILURE(Make(2, {{"peers.memory", Quoted("1 MiB")}}));
  Ranks ranks = cluster_->Train({0, 1}, kForever);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ranks[0]->WaitFor("CAPTURED")) << cluster_->Logs();
  const Said said = cluster_->AwaitStatus(0, [](const Said& each) { return each.Has("peers.memory is"); });
  EXPECT_TRUE(said.Has("copies of job trainer: node node-b: job trainer rank 0: two slots need")) << said;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(ranks[0]->WaitFor("STEP")) << "training waits for memory of another node";
}

// One copy is no copy.
TEST_F(CopiesTest, WithoutCopiesNothingIsHeldForOthers) {
  ASSERT_NO_FATAL_FAILURE(Make(2, {{"peers.copies", "1"}}));
  Ranks ranks = cluster_->Train({0, 1}, kForever);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ranks[0]->WaitFor("CAPTURED")) << cluster_->Logs();
  KillAll(ranks);
  EXPECT_EQ(FilesWith(cluster_->node(1).region(), "peer-"), std::vector<std::string>());
  EXPECT_EQ(ranks[0]->Last("PROTECTED"), 0u);
}

}  // namespace
}  // namespace ckptd::harness
