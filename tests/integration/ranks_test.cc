// Several ranks, each a process: one is lost, they drop different steps, one is missing, two claim the same.
#include <signal.h>

#include <filesystem>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

Ranks TrainAll(Node& node, int world, const std::string& line, const std::vector<std::string>& more = {}) {
  Ranks ranks;
  for (int rank = 0; rank < world; ++rank) {
    std::string arguments = "--world " + std::to_string(world) + " --rank " + std::to_string(rank) + " " + line;
    if (static_cast<size_t>(rank) < more.size()) arguments.append(" ").append(more[static_cast<size_t>(rank)]);
    ranks.push_back(node.Train(Args(arguments)));
  }
  return ranks;
}

// The step all ranks restored; they must agree.
uint64_t RestoredStep(Ranks& ranks) {
  uint64_t step = NumberField(Restored(*ranks[0]), "step");
  for (size_t i = 1; i < ranks.size(); ++i) {
    EXPECT_EQ(NumberField(Restored(*ranks[i]), "step"), step) << "rank " << i << " restored another step";
  }
  return step;
}

void ExpectSameEnd(Node& node, Ranks& ranks, const std::string& line) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_EQ(ranks[i]->Wait(), 0) << "rank " << i << ": " << ranks[i]->Errors() << node.AgentLog();
    EXPECT_EQ(ranks[i]->lines().back(),
              node.ExpectedDigest(Args("--world 64 --rank " + std::to_string(i) + " " + line)));
  }
}

class Worlds : public testing::TestWithParam<int> {};

TEST_P(Worlds, OneRankKilledAllRestarted) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  Ranks ranks = TrainAll(node, GetParam(), "--every 5 --step-ms 5 --steps 100000");
  for (auto& rank : ranks) ASSERT_TRUE(rank->WaitFor("CAPTURED")) << rank->Errors() << node.AgentLog();
  ranks.back()->Kill();
  ranks[0]->WaitFor("STEP");
  for (auto& rank : ranks) rank->Kill();
  uint64_t captured = LastOf(ranks, "CAPTURED");
  std::string line = "--every 5 --step-ms 5 --steps " + std::to_string(LastOf(ranks, "STEP") + 30);
  Ranks again = TrainAll(node, GetParam(), line);
  EXPECT_GE(RestoredStep(again), captured);
  ExpectSameEnd(node, again, line);
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node, static_cast<size_t>(GetParam()));
}

TEST_P(Worlds, RegionGone) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  std::string line = "--every 5 --step-ms 20 --steps 40";
  Ranks ranks = TrainAll(node, GetParam(), line);
  ExpectSameEnd(node, ranks, line);
  uint64_t durable = ranks[0]->Last("DURABLE");
  EXPECT_GT(durable, 0u);
  EXPECT_EQ(node.StopAgent(), 0);
  node.LoseRegion();
  ASSERT_TRUE(node.StartAgent());
  line = "--every 5 --step-ms 20 --steps 60";
  Ranks again = TrainAll(node, GetParam(), line);
  EXPECT_EQ(RestoredStep(again), durable) << node.AgentLog();
  ExpectSameEnd(node, again, line);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Worlds, testing::Values(2, 4));

// One rank is slower and larger than the other, so they lend and drop at different steps; common captures go on.
TEST(Ranks, DroppedDifferentSteps) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  Ranks ranks = TrainAll(node, 2, "--every 2 --steps 100000 --step-ms 10", {"", "--bytes 2000000"});
  ASSERT_TRUE(ranks[0]->WaitFor("DROPPED")) << "nothing was dropped: the test shows nothing";
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ranks[0]->WaitFor("CAPTURED")) << node.AgentLog();
  for (auto& rank : ranks) rank->Kill();
  uint64_t captured = LastOf(ranks, "CAPTURED");
  Ranks again = TrainAll(node, 2, "--every 2 --steps 100000 --step-ms 10", {"", "--bytes 2000000"});
  EXPECT_GE(RestoredStep(again), captured);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(again[1]->WaitFor("CAPTURED")) << node.AgentLog();
}

// Nothing is on the storage, and the memory of one rank was destroyed while no agent looked. That the rank has no part
// of the captured step must not be taken for proof that there never was one: an error, never a silent 0, also from the
// next agent. With one rank nothing is left to tell of the step but that something was lost.
class Destroyed : public testing::TestWithParam<int> {};

TEST_P(Destroyed, MemoryIsAnErrorNotAFreshStart) {
  Node node({.region = "", .storage = "", .settings = {{"durability.flush_every", "1000000"}}});
  ASSERT_TRUE(node.StartAgent());
  const int world = GetParam();
  Ranks ranks = TrainAll(node, world, "--every 5 --step-ms 5 --steps 100000");
  for (auto& rank : ranks) ASSERT_TRUE(rank->WaitFor("CAPTURED")) << rank->Errors() << node.AgentLog();
  node.KillAgent();
  for (auto& rank : ranks) rank->Kill();
  const std::string last = "/rank-0000" + std::to_string(world - 1) + "/slot-";
  for (const std::string& file : FilesWith(node.region(), last)) fs::resize_file(node.region() + "/" + file, 100);
  for (int agent = 0; agent < 2; ++agent) {
    ASSERT_TRUE(node.StartAgent());
    Ranks refused = TrainAll(node, world, "--every 5 --step-ms 5 --steps 20");
    for (auto& rank : refused) {
      EXPECT_EQ(rank->Wait(), 1) << rank->lines().back();
      EXPECT_NE(rank->Errors().find("memory was found damaged"), std::string::npos) << rank->Errors();
    }
    node.KillAgent();
  }
  ASSERT_TRUE(node.StartAgent());
  Ranks fresh = TrainAll(node, world, "--every 5 --step-ms 5 --steps 20 --want fresh");
  EXPECT_EQ(RestoredStep(fresh), 0u);
}

INSTANTIATE_TEST_SUITE_P(Worlds, Destroyed, testing::Values(1, 2));

TEST(Ranks, MissingRankIsNamed) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto zero = node.Train(Args("--world 3 --rank 0 --steps 5 --restore-ms 4000"));
  auto two = node.Train(Args("--world 3 --rank 2 --steps 5 --restore-ms 7000"));
  EXPECT_EQ(zero->Wait(), 1);
  EXPECT_EQ(two->Wait(), 1);
  EXPECT_NE(zero->Errors().find("ranks 1 did not call restore()"), std::string::npos) << zero->Errors();
  EXPECT_NE(two->Errors().find("did not call restore()"), std::string::npos) << two->Errors();
}

TEST(Ranks, RankZeroMissingIsNamed) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto one = node.Train(Args("--world 2 --rank 1 --steps 5 --restore-ms 4000"));
  EXPECT_EQ(one->Wait(), 1);
  EXPECT_NE(one->Errors().find("rank 0 did not call restore()"), std::string::npos) << one->Errors();
}

TEST(Ranks, TwoTrainersClaimOneRank) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(first->WaitFor("CAPTURED"));
  auto second = node.Train(Args("--steps 20 --every 5"));
  EXPECT_EQ(second->Wait(), 1);
  EXPECT_NE(second->Errors().find("is held by the live process " + std::to_string(first->pid())), std::string::npos)
      << second->Errors();
  EXPECT_TRUE(first->WaitFor("CAPTURED")) << "the first one was disturbed";
}

TEST(Ranks, DifferentWorldSizes) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto zero = node.Train(Args("--world 2 --rank 0 --steps 5 --restore-ms 2000"));
  auto one = node.Train(Args("--world 3 --rank 1 --steps 5 --restore-ms 2000"));
  EXPECT_EQ(zero->Wait(), 1);
  EXPECT_EQ(one->Wait(), 1);
  EXPECT_NE(zero->Errors().find("world size 3"), std::string::npos) << zero->Errors();
}

TEST(Ranks, CheckpointOfAnotherWorldSize) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  std::string line = "--every 5 --step-ms 5 --steps 10 --await-at 5";
  Ranks two = TrainAll(node, 2, line);
  ExpectSameEnd(node, two, line);
  auto alone = node.Train(Args("--steps 20"));
  EXPECT_EQ(alone->Wait(), 1);
  EXPECT_NE(alone->Errors().find("was saved with world size 2"), std::string::npos) << alone->Errors();
  line = "--every 5 --step-ms 5 --steps 20";
  Ranks again = TrainAll(node, 2, line);
  EXPECT_EQ(RestoredStep(again), two[0]->Last("CAPTURED")) << "the refused restore cost a snapshot";
  ExpectSameEnd(node, again, line);
}

TEST(Ranks, DifferentWants) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto zero = node.Train(Args("--world 2 --rank 0 --steps 5 --restore-ms 2000"));
  auto one = node.Train(Args("--world 2 --rank 1 --steps 5 --restore-ms 2000 --want fresh"));
  EXPECT_EQ(zero->Wait(), 1);
  EXPECT_EQ(one->Wait(), 1);
  EXPECT_NE(zero->Errors().find("ask restore() for different steps"), std::string::npos) << zero->Errors();
}

}  // namespace
}  // namespace ckptd::harness
