// The model changes between two runs, or its layout under saves.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "tests/integration/harness.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

constexpr char kRun[] = " --every 5 --step-ms 5";

void ExpectDroppedWith(const Child& trainer, const std::string& code) {
  auto dropped = [&](const std::string& line) { return line.rfind("DROPPED", 0) == 0 && line.find(code) != line.npos; };
  EXPECT_TRUE(std::any_of(trainer.lines().begin(), trainer.lines().end(), dropped)) << "no save was dropped: " << code;
}

TEST(Layout, AnotherModelIsAnErrorThatLosesNothing) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  std::string line = "--tensors 4 --bytes 65536 --steps 20";
  auto first = node.Train(Args(line + kRun));
  ASSERT_EQ(first->Wait(), 0);
  auto larger = node.Train(Args("--tensors 6 --bytes 65536 --steps 30"));
  EXPECT_EQ(larger->Wait(), 1);
  EXPECT_NE(larger->Errors().find("in the snapshot"), std::string::npos) << larger->Errors();
  line = "--tensors 4 --bytes 65536 --steps 40";
  auto again = node.Train(Args(line + kRun));
  EXPECT_EQ(NumberField(Restored(*again), "step"), first->Last("CAPTURED"));
  EXPECT_EQ(again->Wait(), 0) << again->Errors();
  EXPECT_EQ(again->lines().back(), node.ExpectedDigest(Args(line)));
}

// The old layout's slots stay until the new one's first captured step, then they go.
TEST(Layout, FreshStartWithAnotherModel) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args(std::string("--tensors 4 --bytes 65536 --steps 20") + kRun));
  ASSERT_EQ(first->Wait(), 0);
  std::string line = "--tensors 6 --bytes 1000000 --steps 60";
  auto second = node.Train(Args(line + kRun + " --want fresh"));
  EXPECT_EQ(second->Wait(), 0) << second->Errors();
  EXPECT_EQ(second->lines().back(), node.ExpectedDigest(Args(line)));
  EXPECT_GT(second->Last("CAPTURED"), 0u);
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

TEST(Layout, KilledWhileTheNewLayoutIsPrepared) {
  Node node;
  // The first slot of the second layout: a trainer that begins late still finds it being prepared.
  ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=region.reserve=sleep:3000@3"}));
  auto first = node.Train(Args(std::string("--tensors 4 --bytes 65536 --steps 20") + kRun));
  ASSERT_EQ(first->Wait(), 0);
  const std::string line = "--tensors 6 --bytes 64000000 --every 1 --steps ";
  auto second = node.Train(Args(line + "60 --want fresh"));
  ASSERT_TRUE(second->WaitFor("DROPPED 1 LAYOUT_PREPARING"));
  node.KillAgent();
  second->Kill();
  ASSERT_TRUE(node.StartAgent());
  auto third = node.Train(Args(line + "20 --step-ms 20"));
  EXPECT_EQ(NumberField(Restored(*third), "step"), 0u) << "a step before the fresh start came back";
  EXPECT_EQ(third->Wait(), 0) << third->Errors() << node.AgentLog();
  EXPECT_EQ(third->lines().back(), node.ExpectedDigest(Args(line + "20")));
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

using TwoRanks = std::vector<std::unique_ptr<Child>>;

// Both to their end. `from`: the step that they begin at.
TwoRanks TrainTwo(Node& node, const std::string& line, uint64_t from) {
  TwoRanks ranks;
  for (const char* rank : {"0", "1"}) ranks.push_back(node.Train(Args(line + kRun + " --world 2 --rank " + rank)));
  for (auto& rank : ranks) {
    EXPECT_EQ(NumberField(Restored(*rank), "step"), from) << node.AgentLog();
    EXPECT_EQ(rank->Wait(), 0) << rank->Errors() << node.AgentLog();
  }
  return ranks;
}

// The layout of the world before has the same headers, and would name the files on the storage by that world's size.
TEST(Layout, AnotherWorldSizeWhileTheLayoutIsPrepared) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  Node node({.region = "", .storage = "", .settings = {{"region.populate_threads", "4"}}});
  ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=region.slot.extended=sleep:3000@1"}));
  auto alone = node.Train(Args(std::string("--steps 100000") + kRun));
  ASSERT_TRUE(alone->WaitFor("DROPPED 5 LAYOUT_PREPARING")) << alone->Errors() << node.AgentLog();
  alone->Kill();
  const TwoRanks two = TrainTwo(node, "--steps 500 --await-at 400", 0);
  const uint64_t captured = two[0]->Last("CAPTURED");
  EXPECT_GT(captured, 0u);
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node, 2);
  EXPECT_TRUE(FilesWith(node.storage(), "-of-00001").empty());
  node.LoseRegion();
  ASSERT_TRUE(node.StartAgent());
  TrainTwo(node, "--steps 520", captured);
}

// Nobody waits for memory that is being prepared when the agent is to end.
TEST(Layout, TheAgentEndsWhileOneIsPrepared) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  Node node;
  ASSERT_TRUE(
      node.StartAgent({"CKPTD_FAILPOINTS=region.slot.extended=sleep:20000", "TSAN_OPTIONS=" + ThreadsMayBeLeft()}));
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 20"));
  for (int i = 0; i < 200 && FilesWith(node.region(), "/slot-").size() < 2; ++i) usleep(50'000);
  usleep(500'000);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(node.StopAgent(), 0) << node.AgentLog();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  EXPECT_TRUE(trainer->WaitFor("CAPTURED")) << trainer->Errors() << node.AgentLog();
  trainer->Kill();
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

// What is prepared beside it, one slot after the other on one thread, is given up, too.
TEST(Layout, WhatIsPreparedIsGivenUpAtTheEnd) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  Node node({.region = "", .storage = "", .settings = {{"region.slots", "8"}, {"region.populate_threads", "1"}}});
  ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=region.slot.extended=sleep:1200"}));
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 20"));
  for (int i = 0; i < 200 && FilesWith(node.region(), "/slot-").size() < 8; ++i) usleep(50'000);
  const auto began = std::chrono::steady_clock::now();
  EXPECT_EQ(node.StopAgent(), 0) << node.AgentLog();
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  EXPECT_EQ(FilesWith(node.region(), "/slot-"), std::vector<std::string>()) << "it was killed in the middle";
  trainer->Kill();
}

// ---- what another job has left: slots of 2 MiB, two of each, and region.size is far below the tmpfs.

constexpr char kEnded[] = "--job ended --steps 20 --every 10 --step-ms 50";

NodeOptions WithSize(const std::string& size, std::map<std::string, std::string> settings = {}) {
  settings["region.size"] = "\"" + size + "\"";
  return {.region = "", .storage = "", .settings = std::move(settings)};
}

TEST(EndedJob, GivesItsMemoryToTheNext) {
  Node node(WithSize("7 MiB"));
  ASSERT_TRUE(node.StartAgent());
  auto ended = node.Train(Args(kEnded));
  ASSERT_EQ(ended->Wait(), 0) << ended->Errors();
  ASSERT_EQ(ended->Last("DURABLE"), 20u);
  auto next = node.Train(Args("--job next --steps 60 --every 5 --step-ms 20"));
  EXPECT_EQ(next->Wait(), 0) << next->Errors();
  EXPECT_GT(next->Last("CAPTURED"), 0u) << node.AgentLog();
  EXPECT_NE(node.AgentLog().find("region.reclaim"), std::string::npos) << node.AgentLog();
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

// The next one may never have as much as it wants: others would lose theirs for nothing.
TEST(EndedJob, KeepsItsMemoryFromAJobThatIsAboveItsOwnQuota) {
  Node node(WithSize("14 MiB", {{"region.job_quota", "\"5 MiB\""}}));
  ASSERT_TRUE(node.StartAgent());
  auto ended = node.Train(Args(kEnded));
  ASSERT_EQ(ended->Wait(), 0) << ended->Errors();
  auto next = node.Train(Args("--job next --bytes 5000000 --steps 40 --every 5 --step-ms 20"));
  EXPECT_EQ(next->Wait(), 0) << next->Errors();
  EXPECT_EQ(next->Last("CAPTURED"), 0u);
  ExpectDroppedWith(*next, "QUOTA_EXCEEDED");
  EXPECT_EQ(FilesWith(node.region(), "ended/rank-00000/slot-").size(), 2u) << node.AgentLog();
}

// ---- the model grows while it trains: slots of 2 MiB before step 40, of 6 MiB after it, two of each.

constexpr char kGrowing[] = "--grow-at 40 --grow-bytes 5000000 --steps 120";
constexpr char kPace[] = " --every 5 --step-ms 10";

NodeOptions WithQuota(const std::string& quota) {
  return {.region = "", .storage = "", .settings = {{"region.job_quota", "\"" + quota + "\""}}};
}

// Waits until a step at or after `step` was captured.
uint64_t CapturedFrom(Child& trainer, uint64_t step) {
  while (trainer.WaitFor("CAPTURED") && trainer.Last("CAPTURED") < step) continue;
  return trainer.Last("CAPTURED");
}

// Kills the trainer and lets another one go on: it begins at `step` or later and ends where an undisturbed run ends.
void KillAndResume(Node& node, Child& trainer, uint64_t step) {
  trainer.Kill();
  uint64_t captured = std::max(step, trainer.Last("CAPTURED"));
  auto next = node.Train(Args(std::string(kGrowing) + kPace));
  EXPECT_GE(NumberField(Restored(*next), "step"), captured) << node.AgentLog();
  EXPECT_EQ(next->Wait(), 0) << next->Errors() << node.AgentLog();
  EXPECT_EQ(next->lines().back(), node.ExpectedDigest(Args(kGrowing)));
}

TEST(GrowingLayout, BesideTheOldOne) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(std::string(kGrowing) + kPace));
  uint64_t captured = CapturedFrom(*trainer, 45);
  ASSERT_GE(captured, 45u) << trainer->Errors() << node.AgentLog();
  EXPECT_EQ(node.AgentLog().find("layout.needs_room"), std::string::npos);
  KillAndResume(node, *trainer, captured);
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

// A worker that was forked before holds the old layout's descriptors open for as long as training runs.
TEST(GrowingLayout, TheOldOnesMemoryGoesThoughAWorkerHoldsIt) {
  Tmpfs tmpfs("64m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  Node node({.region = tmpfs.path(), .storage = "", .settings = {}});
  ASSERT_TRUE(node.StartAgent());
  auto trainer =
      node.Train(Args("--grow-at 40 --grow-bytes 5000000 --steps 100000 --fork-after 20" + std::string(kPace)));
  ASSERT_TRUE(trainer->WaitFor("FORKED")) << trainer->Errors() << node.AgentLog();
  const auto worker = static_cast<pid_t>(trainer->Last("FORKED"));
  ASSERT_GT(worker, 0);
  EXPECT_GE(CapturedFrom(*trainer, 45), 45u) << trainer->Errors() << node.AgentLog();
  const auto used = [&] {
    const std::filesystem::space_info space = std::filesystem::space(tmpfs.path());
    return space.capacity - space.free;
  };
  constexpr uint64_t kTwoSlots = 14 << 20;  // and what is small; the old ones are 4 MiB
  for (int i = 0; i < 20 && used() > kTwoSlots && trainer->WaitFor("CAPTURED"); ++i) continue;
  EXPECT_EQ(FilesWith(node.region(), "/slot-").size(), 2u);
  EXPECT_LE(used(), kTwoSlots);
  kill(worker, SIGKILL);
  trainer->Kill();
}

// The new layout takes 12 MiB, both together 16: one slot of the old one has to go.
TEST(GrowingLayout, TheOldOneShrinksToItsNewestSlot) {
  Node node(WithQuota("15 MiB"));
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(std::string(kGrowing) + kPace));
  uint64_t captured = CapturedFrom(*trainer, 45);
  ASSERT_GE(captured, 45u) << trainer->Errors() << node.AgentLog();
  EXPECT_NE(node.AgentLog().find("layout.needs_room"), std::string::npos);
  ExpectDroppedWith(*trainer, "LAYOUT_PREPARING");
  KillAndResume(node, *trainer, captured);
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

// What was given up is waited for: neither refused, nor is more given up.
TEST(GrowingLayout, ItsMemoryIsWaitedForWhileItIsFreed) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  Node node(WithQuota("15 MiB"));
  ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=region.slot.free=sleep:1000"}));
  auto trainer = node.Train(Args("--grow-at 40 --grow-bytes 5000000 --steps 100000" + std::string(kPace)));
  ASSERT_GE(CapturedFrom(*trainer, 45), 45u) << trainer->Errors() << node.AgentLog();
  EXPECT_NE(node.AgentLog().find("layout.needs_room"), std::string::npos);
  ExpectDroppedWith(*trainer, "LAYOUT_PREPARING");
  trainer->Kill();
}

TEST(GrowingLayout, TooLittleMemoryIsRefusedWithTheNumbers) {
  Node node(WithQuota("10 MiB"));
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(std::string(kGrowing) + kPace));
  ASSERT_TRUE(trainer->WaitFor("STEP 100")) << "training did not go on";
  ExpectDroppedWith(*trainer, "QUOTA_EXCEEDED");
  std::string log = node.AgentLog();
  EXPECT_NE(log.find("the new layout needs 12"), std::string::npos) << log;
  EXPECT_NE(log.find("held 4"), std::string::npos) << log;
  EXPECT_NE(log.find("quota leaves 6"), std::string::npos) << log;
  const uint64_t captured = trainer->Last("CAPTURED");  // 35, but for a save that a busy disk dropped
  EXPECT_GT(captured, 0u);
  EXPECT_LE(captured, 35u);
  EXPECT_EQ(FilesWith(node.region(), "/slot-").size(), 2u) << "what it has stays usable";
  KillAndResume(node, *trainer, captured);
}

// Both old layouts shrunk and both new ones are 28 MiB. The rank that comes first fits beside all that is there, and
// gives its old layout's second slot up for the other.
TEST(GrowingLayout, ARankThatHasMovedOnMakesRoomForTheOther) {
  Node node(WithQuota("29 MiB"));
  ASSERT_TRUE(node.StartAgent());
  std::vector<std::unique_ptr<Child>> ranks;
  for (const char* rank : {"0", "1"})
    ranks.push_back(node.Train(Args(std::string(kGrowing) + kPace + " --world 2 --rank " + rank)));
  for (auto& rank : ranks) EXPECT_GE(CapturedFrom(*rank, 45), 45u) << rank->Errors() << node.AgentLog();
  for (auto& rank : ranks) EXPECT_EQ(rank->Wait(), 0) << rank->Errors();
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node, 2);
}

// Everything dies when one slot is given up already and the new layout is not there yet.
TEST(GrowingLayout, KilledAfterTheOldOneShrank) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  Node node(WithQuota("15 MiB"));
  ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=layout.dropped=kill"}));
  auto trainer = node.Train(Args(std::string(kGrowing) + kPace));
  ASSERT_EQ(node.agent()->Wait(), -SIGKILL) << node.AgentLog();
  trainer->Kill();
  EXPECT_EQ(FilesWith(node.region(), "/slot-").size(), 1u);
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  KillAndResume(node, *trainer, trainer->Last("CAPTURED"));
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

// The trainer has the new layout, and keeps no bell of the old one: what the agent had lent there nobody answers for.
TEST(GrowingLayout, TheAgentIsKilledAsTheNewOneTakesOver) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  Node node;
  ASSERT_TRUE(node.StartAgent({"CKPTD_FAILPOINTS=layout.told=kill@2"}));
  auto trainer = node.Train(Args(std::string(kGrowing) + " --every 5 --step-ms 100"));
  ASSERT_EQ(node.agent()->Wait(), -SIGKILL) << node.AgentLog();
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  uint64_t captured = CapturedFrom(*trainer, 60);
  ASSERT_GE(captured, 60u) << trainer->Errors() << node.AgentLog();
  const auto slots = [&] { return FilesWith(node.region(), "/slot-").size(); };
  while (slots() > 2 && trainer->WaitFor("CAPTURED")) continue;
  EXPECT_EQ(slots(), 2u) << "the memory of the old one stays";
  captured = trainer->Last("CAPTURED");
  KillAndResume(node, *trainer, captured);
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

class AgentKilledWhileGrowing : public testing::TestWithParam<const char*> {};

// Only the agent dies; the trainer comes back with a layout that has lost a slot, and asks again.
TEST_P(AgentKilledWhileGrowing, TheTrainerGoesOn) {
#ifndef CKPTD_FAILPOINTS
  GTEST_SKIP() << "skipped: this build has no failpoints";
#endif
  Node node(WithQuota("15 MiB"));
  ASSERT_TRUE(node.StartAgent({std::string("CKPTD_FAILPOINTS=") + GetParam() + "=kill"}));
  auto trainer = node.Train(Args(std::string(kGrowing) + kPace));
  ASSERT_EQ(node.agent()->Wait(), -SIGKILL) << node.AgentLog();
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  uint64_t captured = CapturedFrom(*trainer, 45);
  ASSERT_GE(captured, 45u) << trainer->Errors() << node.AgentLog();
  KillAndResume(node, *trainer, captured);
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

INSTANTIATE_TEST_SUITE_P(Points, AgentKilledWhileGrowing,
                         testing::Values("region.drop.file_id", "layout.dropped", "region.layout.unlinked"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace ckptd::harness
