// A node is lost with everything on it, and its ranks' snapshots are rebuilt from what the others of their group have:
// images and parity, nobody has a copy. Real agents over real sockets; storage is kept out of it.
#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "tests/integration/copies_fixture.h"

namespace ckptd::harness {
namespace {

class ParityTest : public CopiesTest {
 protected:
  // Chunks so small that every image has some in each of its blocks.
  static std::map<std::string, std::string> Settings(int data, int parity) {
    std::map<std::string, std::string> settings = MemoryOnly();
    settings["peers.parity"] = std::to_string(parity);
    settings["peers.data"] = std::to_string(data);
    settings["region.chunk_bytes"] = Quoted("64 KiB");
    return settings;
  }
  void MakeWithParity(size_t nodes, int data, int parity) {
    ASSERT_NO_FATAL_FAILURE(Make(nodes, Settings(data, parity)));
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

TEST_F(ParityTest, WhoCameBackIsProtectedAgainAtOnce) {
  ASSERT_NO_FATAL_FAILURE(MakeWithParity(5, 3, 1));
  ASSERT_NO_FATAL_FAILURE(IsProtectedAgainAtOnceWithout(4, 2));
}

// Chunk by chunk, while it is captured.
TEST_F(ParityTest, ACaptureIsFoldedBeforeItIsSealed) {
  std::map<std::string, std::string> settings = Settings(2, 1);
  settings["agent.log_level"] = Quoted("debug");
  ASSERT_NO_FATAL_FAILURE(Make(4, settings));
  const std::string large = " --bytes 16000000";
  Ranks ranks = cluster_->Train({0, 1, 2}, kForever + large);
  AwaitProtected(ranks, 6);
  LoseNode(1);
  KillAll(ranks);
  const uint64_t early = MostEarly(cluster_->Logs());
  std::printf("of %d chunks of a block, %lu were sent early at best\n", 8000000 / 65536 + 1, early);
  EXPECT_GT(early, 1u) << cluster_->Logs();
  const std::string line = LineTo(LastOf(ranks, "STEP") + 30) + large;
  const Rest rest = Finish(cluster_->Train({0, 3, 2}, line), {0, 3, 2}, line);
  EXPECT_GE(rest.step, LastOf(ranks, "PROTECTED"));
  EXPECT_EQ(rest.sources[1], kParity) << cluster_->Logs();
}

TEST_F(ParityTest, TheCoordinatorsNodeTooIsRebuilt) {
  ASSERT_NO_FATAL_FAILURE(MakeWithParity(4, 2, 1));
  ASSERT_NO_FATAL_FAILURE(RebuildsWithout(3, {0}));
}

TEST_F(ParityTest, TwoLostNodesAreRebuiltFromTwoParities) {
  ASSERT_NO_FATAL_FAILURE(MakeWithParity(6, 2, 2));
  ASSERT_NO_FATAL_FAILURE(RebuildsWithout(4, {0, 3}));
}

// One node more than parity allows: from storage, which says what was passed over, and why.
TEST_F(ParityTest, MoreLossesThanParityAllowsFallBackToStorage) {
  ASSERT_NO_FATAL_FAILURE(Make(5, {{"agent.decide_timeout", Quoted("2s")},
                                   {"durability.flush_every", "4"},
                                   {"peers.parity", "1"},
                                   {"peers.data", "2"}}));
  const std::vector<size_t> where{0, 1, 2};
  Ranks ranks = TrainUntilProtected(where);
  for (auto& rank : ranks) ASSERT_TRUE(rank->Last("DURABLE") != 0 || rank->WaitFor("DURABLE")) << cluster_->Logs();
  while (LastOf(ranks, "PROTECTED") <= LastOf(ranks, "DURABLE")) ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks, 1));
  for (const size_t node : {1, 2}) LoseNode(node);  // first: an agent whose trainer has ended would flush
  KillAll(ranks);
  const Rest rest = TrainToTheEnd({0, 3, 4}, LastOf(ranks, "STEP") + 30);
  EXPECT_GT(rest.step, 0u) << cluster_->Logs();
  EXPECT_EQ(rest.sources[1], kStorage) << cluster_->Logs();
  EXPECT_EQ(rest.sources[2], kStorage) << cluster_->Logs();
  const uint64_t promised = LastOf(ranks, "PROTECTED");
  std::printf("step %lu was protected, step %lu was restored\n", promised, rest.step);
  if (rest.step >= promised) return;  // it had become durable by then
  const std::string log = cluster_->node(0).AgentLog();
  EXPECT_NE(log.find("op=restore.skipped"), std::string::npos) << log;
  const std::string why =
      "group of ranks 0 1 2 (parity 1) lost ranks 1 and 2 with nodes node-b node-c: 2 lost, 1 may be";
  EXPECT_NE(log.find(why), std::string::npos) << log;
  EXPECT_NE(rest.skipped.find(why), std::string::npos) << rest.skipped;
}

// All agents die and come back: parity is adopted as copies are.
TEST_F(ParityTest, ParityOutlivesTheAgentsThatKeepIt) {
  ASSERT_NO_FATAL_FAILURE(MakeWithParity(4, 2, 1));
  Ranks ranks = TrainUntilProtected({0, 1, 2});
  for (size_t i = 0; i < 4; ++i) cluster_->node(i).KillAgent();
  KillAll(ranks);
  cluster_->node(1).LoseRegion();
  for (const size_t i : {0, 2, 3}) ASSERT_TRUE(cluster_->node(i).StartAgent()) << cluster_->Logs();
  const uint64_t promised = LastOf(ranks, "PROTECTED");
  const Rest rest = TrainToTheEnd({0, 3, 2}, LastOf(ranks, "STEP") + 30);
  EXPECT_GE(rest.step, promised) << cluster_->Logs();
  EXPECT_EQ(rest.sources[1], kParity) << cluster_->Logs();
}

// Who keeps parity dies at any point of it: training goes on, and all is protected again when it is back.
class KeeperDies : public ParityTest, public testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(At, KeeperDies, testing::Values("copy.parity.fold", "copy.parity.seal", "copy.parity.sealed"),
                         [](const auto& point) { return std::string(point.param).substr(12); });

TEST_P(KeeperDies, AndTheJobIsProtectedAgainWhenItIsBack) {
  cluster_ = std::make_unique<Cluster>(ClusterOptions{3, Settings(2, 1), {}});
  for (const size_t i : {0, 1}) ASSERT_TRUE(cluster_->node(i).StartAgent());
  ASSERT_TRUE(cluster_->node(2).StartAgent({std::string("CKPTD_FAILPOINTS=") + GetParam() + "=kill@2"}));
  Ranks ranks = cluster_->Train({0, 1, 2}, kForever);
  std::unique_ptr<Child> keeper = cluster_->node(2).TakeAgent();
  EXPECT_EQ(keeper->Wait(), -SIGKILL) << cluster_->Logs();
  const uint64_t before = LastOf(ranks, "PROTECTED");
  ASSERT_TRUE(cluster_->node(2).StartAgent()) << cluster_->Logs();
  while (LastOf(ranks, "PROTECTED") <= before) ASSERT_NO_FATAL_FAILURE(AwaitProtected(ranks, 1));
}

}  // namespace
}  // namespace ckptd::harness
