// The main path with real processes: whatever dies, the run goes on bit for bit from the newest snapshot that is left.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <thread>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

constexpr uint64_t kRegion = 1;  // ckpt_restored.source
constexpr uint64_t kStorage = 5;
constexpr char kRun[] = "--steps 40 --every 5 --step-ms 10";

// Runs to the end and compares with the undisturbed run.
void ExpectSameEnd(Node& node, Child& trainer, const std::string& line) {
  EXPECT_EQ(trainer.Wait(), 0) << trainer.Errors();
  ASSERT_FALSE(trainer.lines().empty());
  EXPECT_EQ(trainer.lines().back(), node.ExpectedDigest(Args(line)));
}

TEST(SaveRestore, UndisturbedRun) {
  Node node;
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  auto trainer = node.Train(Args(kRun));
  std::string restored = Restored(*trainer);
  EXPECT_EQ(NumberField(restored, "step"), 0u);
  EXPECT_EQ(NumberField(restored, "snapshot_attempt"), 0u);
  ExpectSameEnd(node, *trainer, kRun);
  EXPECT_GT(trainer->Last("CAPTURED"), 0u);
  EXPECT_EQ(trainer->Last("DURABLE"), trainer->Last("CAPTURED"));
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

struct Killed {
  uint64_t captured = 0;  // the last step of which the trainer was told that it is
  uint64_t step = 0;      // the last one
};

// Kills the trainer after it was told of a few captured steps.
Killed TrainUntilCaptured(Node& node) {
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 2"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(trainer->WaitFor("CAPTURED")) << trainer->Errors() << node.AgentLog();
  trainer->Kill();
  return {trainer->Last("CAPTURED"), trainer->Last("STEP")};
}

// From the captured step, or from a newer one that was sealed before anybody was told.
void ExpectResume(Node& node, const Killed& killed, uint64_t source) {
  std::string line = "--every 5 --step-ms 2 --steps " + std::to_string(killed.step + 40);
  auto trainer = node.Train(Args(line));
  std::string restored = Restored(*trainer);
  EXPECT_GE(NumberField(restored, "step"), killed.captured) << node.AgentLog();
  EXPECT_EQ(NumberField(restored, "source"), source);
  ExpectSameEnd(node, *trainer, line);
}

TEST(SaveRestore, TrainerKilled) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  ExpectResume(node, TrainUntilCaptured(node), kRegion);
}

TEST(SaveRestore, BothKilledTogether) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  const Killed killed = TrainUntilCaptured(node);
  node.KillAgent();
  ASSERT_TRUE(node.StartAgent());
  ExpectResume(node, killed, kRegion);
}

TEST(SaveRestore, AgentKilledUnderARunningTrainer) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--steps 200 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED 20"));
  node.KillAgent();
  ASSERT_TRUE(node.StartAgent());
  ExpectSameEnd(node, *trainer, "--steps 200");
  EXPECT_GT(trainer->Last("CAPTURED"), 100u) << "saves did not go on after the agent came back";
  EXPECT_EQ(trainer->Last("DURABLE"), trainer->Last("CAPTURED"));
}

// What was lent when the agent died is lent again: no slot has another file, and none had to be asked for.
TEST(SaveRestore, AKilledAgentCostsNoFreshSlotWhileItsTrainerLives) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  const auto files = [&] {
    std::map<std::string, ino_t> inodes;
    for (const std::string& slot : FilesWith(node.region(), "/slot-")) {
      struct stat status = {};
      EXPECT_EQ(stat((node.region() + "/" + slot).c_str(), &status), 0) << slot;
      inodes[slot] = status.st_ino;
    }
    return inodes;
  };
  auto trainer = node.Train(Args("--steps 100000 --every 5 --step-ms 5"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED 20"));
  const auto before = files();
  EXPECT_EQ(before.size(), 2u);
  for (int kill = 0; kill < 3; ++kill) {
    trainer->Signal(SIGSTOP);
    node.KillAgent();
    const uint64_t captured = trainer->Last("CAPTURED");
    ASSERT_TRUE(node.StartAgent());
    std::this_thread::sleep_for(
        Millis(300));  // it knows its attempt again, and may lend as soon as the trainer is back
    trainer->Signal(SIGCONT);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(trainer->WaitFor("CAPTURED")) << trainer->Errors() << node.AgentLog();
    EXPECT_GT(trainer->Last("CAPTURED"), captured);
    EXPECT_EQ(files(), before) << "agent " << kill + 1;
  }
  trainer->Kill();
}

TEST(SaveRestore, RegionGoneIsReadFromStorage) {
  Node node({.region = "", .storage = "", .settings = {{"region.slots", "4"}}});  // no save is dropped
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args("--steps 20 --every 5 --step-ms 40 --kill-at 20:durable"));
  ASSERT_EQ(trainer->Wait(), -SIGKILL) << "step 20 did not become durable";
  node.KillAgent();
  node.LoseRegion();
  ASSERT_TRUE(node.StartAgent());
  ExpectResume(node, {20, 20}, kStorage);
}

// Generations whose parts are all on storage, the newer one damaged, nothing in memory.
class Damaged : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(node_.StartAgent());
    auto trainer = node_.Train(Args(kRun));
    ASSERT_EQ(trainer->Wait(), 0);
    ASSERT_EQ(node_.StopAgent(), 0);
    steps_ = WholeSteps(node_);
    ASSERT_GE(steps_.size(), 2u);
    older_ = steps_[steps_.size() - 2].first;
    newest_ = steps_.back().first;
    node_.LoseRegion();
  }
  // Restores, and expects the older generation and a word about the newer one.
  void ExpectOlder() {
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    auto trainer = node_.Train(Args("--steps 60 --every 5"));
    std::string restored = Restored(*trainer);
    EXPECT_EQ(NumberField(restored, "step"), older_) << node_.AgentLog();
    EXPECT_EQ(NumberField(restored, "source"), kStorage);
    EXPECT_TRUE(std::any_of(trainer->lines().begin(), trainer->lines().end(), [&](const std::string& line) {
      return line.rfind("SKIPPED step=" + std::to_string(newest_), 0) == 0 && !Field(line, "why").empty();
    })) << testing::PrintToString(trainer->lines());
    ExpectSameEnd(node_, *trainer, "--steps 60");
  }
  [[nodiscard]] std::string Newest(const std::string& name) const { return steps_.back().second + "/" + name; }

  Node node_;
  std::vector<std::pair<uint64_t, std::string>> steps_;
  uint64_t older_ = 0;
  uint64_t newest_ = 0;
};

TEST_F(Damaged, ImageWithAFlippedBit) {
  FlipByte(Newest("rank-00000-of-00001.safetensors"), 30'000);
  ExpectOlder();
}

TEST_F(Damaged, ImageCutShort) {
  std::filesystem::resize_file(Newest("rank-00000-of-00001.safetensors"), 10'000);
  ExpectOlder();
}

TEST_F(Damaged, ImageGone) {
  std::filesystem::remove(Newest("rank-00000-of-00001.safetensors"));
  ExpectOlder();
}

TEST_F(Damaged, ManifestWithGarbage) {
  FillWithGarbage(Newest("manifest.json"), 7);
  ExpectOlder();
}

TEST_F(Damaged, SidecarWithAFlippedBit) {
  FlipByte(Newest("rank-00000-of-00001.json"), 40);
  ExpectOlder();
}

// Memory that was damaged while nobody looked: the newest snapshot comes from storage instead.
TEST(SaveRestore, DamagedSlotIsNotUsed) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(kRun));
  ASSERT_EQ(trainer->Wait(), 0);
  const uint64_t durable = trainer->Last("DURABLE");
  ASSERT_EQ(node.StopAgent(), 0);
  for (const std::string& slot : FilesWith(node.region(), "/slot-")) FlipByte(node.region() + "/" + slot, 40'000);
  ASSERT_TRUE(node.StartAgent());
  auto resumed = node.Train(Args("--steps 60 --every 5"));
  std::string restored = Restored(*resumed);
  EXPECT_EQ(NumberField(restored, "step"), durable) << node.AgentLog();
  EXPECT_EQ(NumberField(restored, "source"), kStorage);
  ExpectSameEnd(node, *resumed, "--steps 60");
}

TEST(SaveRestore, RollBackStaysRolledBack) {
  Node node({.region = "", .storage = "", .settings = {{"retention.keep_last", "8"}, {"region.slots", "4"}}});
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args(kRun));
  ASSERT_EQ(first->Wait(), 0) << testing::PrintToString(first->lines()) << first->Errors() << node.AgentLog();
  const auto steps = WholeSteps(node);  // under load a save may be dropped
  ASSERT_GE(steps.size(), 3u) << node.AgentLog();
  const uint64_t wanted = steps[steps.size() / 2].first;
  auto rolled = node.Train(Args("--steps 100 --every 1000 --step-ms 5 --want " + std::to_string(wanted)));
  std::string restored = Restored(*rolled);
  EXPECT_EQ(NumberField(restored, "step"), wanted) << rolled->Errors() << node.AgentLog();
  ASSERT_TRUE(rolled->WaitFor("STEP " + std::to_string(wanted + 10)));
  rolled->Kill();  // before any save of its own
  node.KillAgent();
  ASSERT_TRUE(node.StartAgent());
  auto after = node.Train(Args("--steps 60 --every 5 --step-ms 5"));
  EXPECT_EQ(NumberField(Restored(*after), "step"), wanted) << "a step off the lineage came back";
  ExpectSameEnd(node, *after, "--steps 60");
  auto last = node.Train(Args("--steps 70 --every 5"));
  EXPECT_EQ(NumberField(Restored(*last), "step"), after->Last("CAPTURED"));
  ExpectSameEnd(node, *last, "--steps 70");
}

TEST(SaveRestore, FreshStartWhenAskedFor) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  EXPECT_GT(TrainUntilCaptured(node).captured, 0u);
  auto trainer = node.Train(Args(std::string(kRun) + " --want fresh"));
  EXPECT_EQ(NumberField(Restored(*trainer), "step"), 0u);
  ExpectSameEnd(node, *trainer, kRun);
}

}  // namespace
}  // namespace ckptd::harness
