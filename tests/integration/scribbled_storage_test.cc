// A trainer writes over the head of every image that it has just saved, and the storage fills up with that: nothing
// good is deleted, operators are told, training goes on, and there is a way back.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/integration/ctl_fixture.h"
#include "tests/integration/scribble.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr char kEndless[] = "--steps 100000000 --every 5 --step-ms 5 --close-ms 0";

class ScribbledStorage : public CkptctlTest {
 protected:
  void SetUp() override {
    CkptctlTest::SetUp();
    if (!tmpfs_.mounted()) GTEST_SKIP() << kNoMount;
    node_.reset();
    NodeOptions options = Settings("2");
    options.storage = tmpfs_.path() + "/storage";
    node_ = std::make_unique<Node>(options);
    // A chunk is read some time after it was captured: it is scribbled over by then.
    ASSERT_TRUE(node_->StartAgent({"CKPTD_FAILPOINTS=flush.chunk=sleep:5"})) << node_->AgentLog();
    ASSERT_NO_FATAL_FAILURE(FillUp());
  }
  void TearDown() override {
    scribbler_.reset();
    trainer_.reset();
    CkptctlTest::TearDown();
  }

  // Saves garbage from `good_` on, until the storage is full of it.
  void FillUp() {
    std::ofstream(Ballast(), std::ios::binary) << std::string(16 << 20, 'x');
    trainer_ = node_->Train(Args(kEndless));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(trainer_->WaitFor("DURABLE")) << node_->AgentLog();
    trainer_->Signal(SIGSTOP);  // between two saves: what it has saved is flushed as it is
    while (FilesWith(node_->storage(), ".tmp-") != std::vector<std::string>()) usleep(10'000);
    good_ = Committed().back();
    memory_.emplace(trainer_->pid(), "/slot-");
    ASSERT_FALSE(memory_->maps().empty());
    scribbler_.emplace(*memory_, 7);
    trainer_->Signal(SIGCONT);
    // That a step is damaged is told before.
    for (int i = 0; i < 150 && !full_.Has(kFull); ++i) {
      usleep(100'000);
      full_ = Run("status -o json");
    }
    ASSERT_EQ(full_.code, 1) << full_ << node_->AgentLog();
  }

  static constexpr char kFull[] = "\"state\": \"FULL\"";

  [[nodiscard]] std::string Ballast() const { return tmpfs_.path() + "/ballast"; }
  // Oldest first.
  [[nodiscard]] std::vector<uint64_t> Committed() const {
    std::vector<uint64_t> steps;
    for (const std::string& name : FilesWith(node_->storage(), "manifest.json"))
      steps.push_back(strtoull(name.c_str() + name.find("step-") + 5, nullptr, 10));
    std::sort(steps.begin(), steps.end());
    return steps;
  }
  // And how many are newer than it. A save may escape the scribbling on a busy machine.
  std::pair<uint64_t, int> NewestGood() {
    std::vector<uint64_t> steps = Committed();
    for (int bad = 0; !steps.empty(); ++bad, steps.pop_back()) {
      if (Run("verify trainer@" + std::to_string(steps.back())).code == 0) return {steps.back(), bad};
    }
    return {0, 0};
  }
  void Reboot() {
    trainer_->Kill();
    node_->KillAgent();
    node_->LoseRegion();
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  }

  Tmpfs tmpfs_{"24m"};
  std::unique_ptr<Child> trainer_;
  std::optional<SharedMemory> memory_;
  std::optional<Scribbler> scribbler_;
  uint64_t good_ = 0;
  Said full_;
};

TEST_F(ScribbledStorage, TheLastGoodStepStaysAndIsRestored) {
  EXPECT_TRUE(full_.Has(kFull)) << full_;
  EXPECT_TRUE(Run("status").Has("next: free space on the storage"));
  const uint64_t step = trainer_->Last("STEP");
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(trainer_->WaitFor("STEP")) << "training stopped";
  EXPECT_GT(trainer_->Last("STEP"), step);
  trainer_->Kill();  // a save that escapes behind the look would be newer
  const auto [good, bad] = NewestGood();
  EXPECT_GE(good, good_) << "the last good step was deleted";
  EXPECT_GT(bad, 2) << "keep_last is 2: the storage is full of something else";
  node_->KillAgent();
  fs::remove(Ballast());  // an attempt's record needs a little room
  ASSERT_NO_FATAL_FAILURE(Reboot());
  auto again = node_->Train(Args("--steps 100000000 --every 5 --step-ms 5"));
  EXPECT_EQ(NumberField(Restored(*again), "step"), good) << node_->AgentLog();
  EXPECT_TRUE(again->WaitFor("DURABLE")) << node_->AgentLog();
}

TEST_F(ScribbledStorage, WithRoomAgainSavesBecomeDurable) {
  scribbler_.reset();
  trainer_->WaitFor("never", Millis(300));
  const uint64_t durable = trainer_->Last("DURABLE");
  fs::remove(Ballast());
  while (trainer_->Last("DURABLE") < durable + 100)
    ASSERT_TRUE(trainer_->WaitFor("DURABLE")) << trainer_->Errors() << node_->AgentLog();
  const Said well = Await(0, "status -o json");
  EXPECT_EQ(well.code, 0) << well;
  ASSERT_NO_FATAL_FAILURE(Reboot());
  auto again = node_->Train(Args("--steps 100000000 --every 5 --step-ms 5"));
  EXPECT_GT(NumberField(Restored(*again), "step"), durable) << node_->AgentLog();
  for (int i = 0; i < 200 && Committed().size() >= 20; ++i) ASSERT_TRUE(again->WaitFor("DURABLE")) << node_->AgentLog();
  EXPECT_LT(Committed().size(), 20u) << "garbage stays although a newer step is good";
}

}  // namespace
}  // namespace ckptd::harness
