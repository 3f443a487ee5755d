// Snapshots that other nodes hold: a node is lost with everything on it, and the job goes on from memory. Real agents
// over real sockets; what storage has is kept out of it by flush_every, so that a step can come from memory only.
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "tests/integration/cluster.h"

namespace ckptd::harness {
namespace {

using Ranks = std::vector<std::unique_ptr<Child>>;

constexpr char kForever[] = "--every 5 --step-ms 5 --steps 100000";
constexpr uint64_t kRegion = 1;  // where a snapshot was read from
constexpr uint64_t kReplica = 2;
constexpr uint64_t kParity = 3;
constexpr uint64_t kStorage = 5;

const std::map<std::string, std::string>& MemoryOnly() {
  static const auto* const settings = new std::map<std::string, std::string>{{"agent.decide_timeout", Quoted("2s")},
                                                                             {"durability.flush_every", "1000000"}};
  return *settings;
}

uint64_t LastOf(const Ranks& ranks, const std::string& word) {
  uint64_t last = UINT64_MAX;
  for (const auto& rank : ranks) last = std::min(last, rank->Last(word));
  return last;
}

void KillAll(Ranks& ranks) {
  for (auto& rank : ranks) rank->Kill();
}

class CopiesTest : public testing::Test {
 protected:
  void Make(size_t nodes, std::map<std::string, std::string> settings = MemoryOnly()) {
    cluster_ = std::make_unique<Cluster>(ClusterOptions{nodes, std::move(settings), {}});
    ASSERT_TRUE(cluster_->Start()) << cluster_->Logs();
  }
  // Until every rank was told of `steps` protected ones.
  Ranks TrainUntilProtected(const std::vector<size_t>& where, int steps = 2) {
    Ranks ranks = cluster_->Train(where, kForever);
    AwaitProtected(ranks, steps);
    return ranks;
  }
  void AwaitProtected(const Ranks& ranks, int steps) {
    for (const auto& rank : ranks) {
      for (int i = 0; i < steps; ++i) ASSERT_TRUE(rank->WaitFor("PROTECTED")) << rank->Errors() << cluster_->Logs();
    }
  }
  // As a machine that burns: agent, memory and what it was doing.
  void LoseNode(size_t number) {
    cluster_->node(number).KillAgent();
    cluster_->node(number).LoseRegion();
  }
  struct Rest {
    uint64_t step = 0;
    std::vector<uint64_t> sources;
  };
  // On to step `steps`: all ranks restored one step, and the state at the end is the right one.
  Rest TrainToTheEnd(const std::vector<size_t>& where, uint64_t steps) {
    const std::string line = LineTo(steps);
    Ranks ranks = cluster_->Train(where, line);
    return Finish(ranks, where, line);
  }
  static std::string LineTo(uint64_t steps) {
    return "--every 5 --step-ms 5 --close-ms 0 --steps " + std::to_string(steps);
  }
  Rest Finish(const Ranks& ranks, const std::vector<size_t>& where, const std::string& line) {
    Rest rest;
    for (size_t i = 0; i < ranks.size(); ++i) {
      const std::string restored = Restored(*ranks[i]);
      if (i == 0) rest.step = NumberField(restored, "step");
      EXPECT_EQ(NumberField(restored, "step"), rest.step) << "rank " << i << cluster_->Logs();
      rest.sources.push_back(NumberField(restored, "source"));
    }
    for (size_t i = 0; i < ranks.size(); ++i) {
      EXPECT_EQ(ranks[i]->Wait(), 0) << "rank " << i << ": " << ranks[i]->Errors() << cluster_->Logs();
      EXPECT_EQ(ranks[i]->lines().back(),
                cluster_->node(where[i]).ExpectedDigest(
                    Args("--world " + std::to_string(where.size()) + " --rank " + std::to_string(i) + " " + line)));
    }
    return rest;
  }
  // Of a job with a rank on each of the first `ranks` nodes; `lost` is replaced by the next node.
  void ComesBackWithout(size_t ranks, size_t lost) {
    std::vector<size_t> where;
    for (size_t i = 0; i < ranks; ++i) where.push_back(i);
    Ranks running = TrainUntilProtected(where);
    if (HasFailure()) return;
    LoseNode(lost);
    KillAll(running);
    const uint64_t promised = LastOf(running, "PROTECTED");
    where[lost] = ranks;
    const Rest rest = TrainToTheEnd(where, LastOf(running, "STEP") + 30);
    EXPECT_GE(rest.step, promised) << cluster_->Logs();
    for (size_t i = 0; i < ranks; ++i)
      EXPECT_EQ(rest.sources[i], i == lost ? kReplica : kRegion) << "rank " << i << cluster_->Logs();
  }

  std::unique_ptr<Cluster> cluster_;
};

TEST_F(CopiesTest, ALostNodeComesBackFromItsCopies) {
  ASSERT_NO_FATAL_FAILURE(Make(3));
  ASSERT_NO_FATAL_FAILURE(ComesBackWithout(2, 1));
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

// Who fetches a copy dies in the middle of it: what came in half counts for nothing, and it is fetched anew.
TEST_F(CopiesTest, TheAgentThatFetchesDiesAndFetchesAgain) {
  cluster_ = std::make_unique<Cluster>(ClusterOptions{3, MemoryOnly(), {}});
  for (const size_t i : {0, 1}) ASSERT_TRUE(cluster_->node(i).StartAgent());
  ASSERT_TRUE(cluster_->node(2).StartAgent({"CKPTD_FAILPOINTS=copy.fetch.chunk=kill"}));
  Ranks before = TrainUntilProtected({0, 1});
  LoseNode(1);
  KillAll(before);
  const uint64_t promised = LastOf(before, "PROTECTED");
  const std::string line = LineTo(LastOf(before, "STEP") + 30);
  Ranks ranks = cluster_->Train({0, 2}, line);
  std::unique_ptr<Child> spare = cluster_->node(2).TakeAgent();
  ASSERT_EQ(spare->Wait(), -SIGKILL) << cluster_->Logs();
  ASSERT_TRUE(cluster_->node(2).StartAgent()) << cluster_->Logs();
  const Rest rest = Finish(ranks, {0, 2}, line);
  EXPECT_GE(rest.step, promised) << cluster_->Logs();
  EXPECT_EQ(rest.sources[1], kReplica) << cluster_->Logs();
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

// ------------------------------------------------------------------------------------------------------------ parity

// Each node keeps parity of the others' images in place of copies.
class ParityTest : public CopiesTest {
 protected:
  void MakeWithParity(size_t nodes, int data, int parity) {
    std::map<std::string, std::string> settings = MemoryOnly();
    settings["peers.parity"] = std::to_string(parity);
    settings["peers.data"] = std::to_string(data);
    ASSERT_NO_FATAL_FAILURE(Make(nodes, settings));
  }
  // Of a job with a rank on each of the first nodes; those `lost` are replaced by the nodes behind them.
  void RebuildsWithout(size_t ranks, const std::vector<size_t>& lost) {
    std::vector<size_t> where;
    for (size_t i = 0; i < ranks; ++i) where.push_back(i);
    Ranks running = TrainUntilProtected(where);
    if (HasFailure()) return;
    for (const size_t node : lost) LoseNode(node);
    KillAll(running);
    const uint64_t promised = LastOf(running, "PROTECTED");
    for (size_t i = 0; i < lost.size(); ++i) where[lost[i]] = ranks + i;
    const Rest rest = TrainToTheEnd(where, LastOf(running, "STEP") + 30);
    EXPECT_GE(rest.step, promised) << cluster_->Logs();
    for (size_t i = 0; i < ranks; ++i) {
      const bool is_lost = std::find(lost.begin(), lost.end(), i) != lost.end();
      EXPECT_EQ(rest.sources[i], is_lost ? kParity : kRegion) << "rank " << i << cluster_->Logs();
    }
  }
};

TEST_F(ParityTest, ALostNodeIsRebuilt) {
  ASSERT_NO_FATAL_FAILURE(MakeWithParity(5, 3, 1));
  ASSERT_NO_FATAL_FAILURE(RebuildsWithout(4, {2}));
}

TEST_F(ParityTest, TheCoordinatorsNodeTooIsRebuilt) {
  ASSERT_NO_FATAL_FAILURE(MakeWithParity(4, 2, 1));
  ASSERT_NO_FATAL_FAILURE(RebuildsWithout(3, {0}));
}

TEST_F(ParityTest, TwoLostNodesAreRebuiltFromTwoParities) {
  ASSERT_NO_FATAL_FAILURE(MakeWithParity(6, 2, 2));
  ASSERT_NO_FATAL_FAILURE(RebuildsWithout(4, {0, 3}));
}

}  // namespace
}  // namespace ckptd::harness
