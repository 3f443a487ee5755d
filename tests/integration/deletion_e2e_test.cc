// What goes from storage: by hand while no run of the job lives, by retention, and what killed agents left.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/integration/ctl_fixture.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

class DeletionE2eTest : public CkptctlTest {
 protected:
  // As after a reboot: memory is empty, and nobody coordinates the job. Arms a point of the agent.
  void Reboot(const std::string& failpoint = "") {
    node_->KillAgent();
    node_->LoseRegion();
    StartAgent(failpoint);
  }
  void StartAgent(const std::string& failpoint = "") {
    std::vector<std::string> environment;
    if (!failpoint.empty()) environment.push_back("CKPTD_FAILPOINTS=" + failpoint + "=kill");
    ASSERT_TRUE(node_->StartAgent(environment)) << node_->AgentLog();
  }

  // A run to `steps`; it must restore `from`, and end as if nothing had happened.
  void TrainOn(uint64_t from, const std::string& steps, const std::string& more = "") {
    auto trainer = node_->Train(Args("--job gpt --step-ms 10 --every 5 --steps " + steps + " " + more));
    EXPECT_EQ(NumberField(Restored(*trainer), "step"), from) << node_->AgentLog();
    EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors() << node_->AgentLog();
    EXPECT_EQ(trainer->lines().back(), node_->ExpectedDigest(Args("--steps " + steps)));
  }

  [[nodiscard]] bool Exists(const std::string& name) const { return fs::exists(node_->storage() + "/gpt/" + name); }
  // By name: a walk through folders that are being deleted ends at the first that has gone.
  [[nodiscard]] size_t Manifests() const {
    std::error_code ignored;
    std::vector<fs::path> steps;
    for (const auto& entry : fs::directory_iterator(node_->storage() + "/gpt", ignored)) steps.push_back(entry.path());
    return static_cast<size_t>(std::count_if(steps.begin(), steps.end(), [](const fs::path& step) {
      std::error_code none;
      return fs::exists(step / "manifest.json", none);
    }));
  }

  // Until `done` or the deadline: what it waits for is files that another process removes.
  template <typename Done>
  static bool Await(Child& trainer, const Done& done) {
    const TimePoint deadline = std::chrono::steady_clock::now() + kLong;
    while (!done() && std::chrono::steady_clock::now() < deadline) trainer.WaitFor("never", Millis(20));
    return done();
  }
};

bool Failpoints() {
#ifdef CKPTD_FAILPOINTS
  return true;
#else
  return false;
#endif
}

TEST_F(DeletionE2eTest, RmWithoutARunOpensAnAttemptThatIsNeverDecided) {
  Train("gpt");
  ASSERT_NO_FATAL_FAILURE(Reboot());
  Said removed = Run("rm " + Older("gpt"));
  EXPECT_EQ(removed.code, 0) << removed << node_->AgentLog();
  EXPECT_FALSE(fs::exists(StepDir("gpt", older_)));
  EXPECT_TRUE(Exists("attempts/a0002.json"));
  EXPECT_FALSE(Exists("attempts/a0002.decided.json"));
  EXPECT_EQ(Run("rm " + Older("gpt")).code, 4);
  TrainOn(20, "40");
  EXPECT_TRUE(Exists("attempts/a0003.decided.json"));
}

TEST_F(DeletionE2eTest, TheLastGoodStepIsRefusedWithTheNextStep) {
  Train("gpt");
  ASSERT_NO_FATAL_FAILURE(Reboot());
  Said refused = Run("rm gpt@20");
  EXPECT_EQ(refused.code, 6) << refused;
  EXPECT_TRUE(refused.ErrorHas("last good checkpoint")) << refused;
  EXPECT_TRUE(refused.ErrorHas("can go when there is one")) << refused;
  EXPECT_FALSE(Exists("attempts/a0002.json")) << "a refusal leaves no trace";
  TrainOn(20, "25");
}

TEST_F(DeletionE2eTest, ASuccessorThatIsDamagedProtectsTheStep) {
  Train("gpt");
  for (const auto& [step, folder] : WholeSteps(*node_, "gpt")) {
    if (step > older_) FlipByte(Image(folder), 20000);
  }
  ASSERT_NO_FATAL_FAILURE(Reboot());
  Said refused = Run("rm " + Older("gpt"));
  EXPECT_EQ(refused.code, 6) << refused;
  EXPECT_TRUE(fs::exists(StepDir("gpt", older_) + "/manifest.json"));
  TrainOn(older_, "25");
}

TEST_F(DeletionE2eTest, AnAgentKilledInAnRmLeavesAMarkerThatTheNextAttemptResolves) {
  if (!Failpoints()) GTEST_SKIP() << "skipped: this build has no failpoints (CKPTD_FAILPOINTS=OFF)";
  Train("gpt");
  ASSERT_NO_FATAL_FAILURE(Reboot("delete.before_manifest"));
  Said killed = Run("rm " + Older("gpt"));
  EXPECT_NE(killed.code, 0) << killed;
  ASSERT_EQ(node_->agent()->Wait(), -SIGKILL);
  ASSERT_TRUE(fs::exists(StepDir("gpt", older_) + "/manifest.json"));
  ASSERT_TRUE(fs::exists(StepDir("gpt", older_) + "/deleting"));
  ASSERT_NO_FATAL_FAILURE(StartAgent());
  EXPECT_TRUE(Run("list gpt").Has("deleting")) << Run("list gpt");
  auto trainer = node_->Train(Args("--job gpt --step-ms 10 --every 5 --steps 100000"));
  EXPECT_EQ(NumberField(Restored(*trainer), "step"), 20u) << node_->AgentLog();
  EXPECT_TRUE(Await(*trainer, [&] { return !fs::exists(StepDir("gpt", older_)); })) << node_->AgentLog();
}

TEST_F(DeletionE2eTest, RmAgainAfterAKill) {
  if (!Failpoints()) GTEST_SKIP() << "skipped: this build has no failpoints (CKPTD_FAILPOINTS=OFF)";
  Train("gpt");
  ASSERT_NO_FATAL_FAILURE(Reboot("delete.after_manifest"));
  Run("rm " + Older("gpt"));
  ASSERT_EQ(node_->agent()->Wait(), -SIGKILL);
  ASSERT_NO_FATAL_FAILURE(StartAgent());
  EXPECT_EQ(Run("rm " + Older("gpt")).code, 0) << node_->AgentLog();
  EXPECT_FALSE(fs::exists(StepDir("gpt", older_)));
  TrainOn(20, "40");
}

// The node that coordinated the job has another name now, or is gone.
TEST_F(DeletionE2eTest, AnotherAgentsRunIsCutOffByForceOnly) {
  Train("gpt");
  node_->KillAgent();
  NodeOptions options = Settings();
  options.storage = node_->storage();
  Node other(options);
  ASSERT_TRUE(other.StartAgent()) << other.AgentLog();
  Said refused = Run("rm " + Older("gpt"));
  EXPECT_EQ(refused.code, 6) << refused;
  EXPECT_TRUE(refused.ErrorHas("--force")) << refused;
  EXPECT_FALSE(Exists("attempts/a0002.json"));
  Said forced = Run("rm --force " + Older("gpt"));
  EXPECT_EQ(forced.code, 0) << forced << other.AgentLog();
  EXPECT_FALSE(fs::exists(StepDir("gpt", older_)));
}

TEST_F(DeletionE2eTest, GcWithoutARunAppliesRetention) {
  Train("gpt");
  const size_t before = Manifests();
  ASSERT_GE(before, 2u);
  node_->KillAgent();
  node_->LoseRegion();
  NodeOptions options = Settings("1");
  options.storage = node_->storage();
  options.region = node_->region();  // the same agent, by its region
  Node again(options);
  ASSERT_TRUE(again.StartAgent()) << again.AgentLog();
  Said gc = Run("gc gpt");
  EXPECT_EQ(gc.code, 0) << gc << again.AgentLog();
  EXPECT_EQ(Manifests(), 1u) << gc;
  EXPECT_TRUE(fs::exists(StepDir("gpt", 20) + "/manifest.json"));
}

// The coordinator of the run hears of it from the storage; what keep_last has let go long ago goes then.
TEST_F(DeletionE2eTest, AStepThatAnotherNodeUnpinnedGoes) {
  NodeOptions options = Settings();
  options.storage = node_->storage();
  options.settings["agent.admin_socket"] = "\"" + dir_ + "/other.sock\"";
  Node other(options);
  ASSERT_TRUE(other.StartAgent()) << other.AgentLog();
  auto trainer = node_->Train(Args("--job gpt --step-ms 5 --every 5 --steps 1000000"));
  ASSERT_TRUE(trainer->WaitFor("DURABLE")) << node_->AgentLog();
  trainer->Signal(SIGSTOP);
  usleep(500'000);  // what was begun ends
  const std::string step = std::to_string(trainer->Last("DURABLE"));
  EXPECT_EQ(Run("pin gpt@" + step).code, 0) << Run("list gpt");
  Said unpinned = Run("unpin gpt@" + step + " --agent " + dir_ + "/other.sock");
  EXPECT_EQ(unpinned.code, 0) << unpinned;
  trainer->Signal(SIGCONT);
  EXPECT_TRUE(Await(*trainer, [&] { return !fs::exists(StepDir("gpt", std::stoull(step))); })) << Run("list gpt");
  trainer->Kill();
}

// keep_last is lowered by hand: the backlog goes while the run saves on, and does not wait for a new attempt.
TEST_F(DeletionE2eTest, ABacklogDrainsWhenRetentionIsLowered) {
  node_ = std::make_unique<Node>(Settings("50"));
  ASSERT_NO_FATAL_FAILURE(StartAgent());
  auto trainer = node_->Train(Args("--job gpt --step-ms 1 --every 5 --steps 1000000"));
  ASSERT_TRUE(Await(*trainer, [&] { return Manifests() >= 30; })) << node_->AgentLog();
  trainer->Signal(SIGSTOP);  // nothing is saved any more: the change itself must begin it
  const std::string file = node_->base() + "/ckptd.toml";
  std::string text = Content(file);
  const size_t at = text.find("keep_last = 50");
  ASSERT_NE(at, text.npos);
  std::ofstream(file) << text.replace(at, 14, "keep_last = 2");
  node_->agent()->Signal(SIGHUP);
  EXPECT_TRUE(Await(*trainer, [&] { return Manifests() <= 4; })) << Manifests() << node_->AgentLog();
  trainer->Signal(SIGCONT);
  ASSERT_TRUE(trainer->WaitFor("DURABLE"));
  trainer->Kill();
}

// Something is in the way of the marker. It is told, by name, and retention goes on with the others.
TEST_F(DeletionE2eTest, AStepThatCannotBeDeletedHoldsUpNone) {
  auto trainer = node_->Train(Args("--job gpt --step-ms 5 --every 5 --steps 1000000"));
  ASSERT_TRUE(trainer->WaitFor("DURABLE")) << node_->AgentLog();
  trainer->Signal(SIGSTOP);
  usleep(500'000);  // what was begun ends
  const uint64_t first = WholeSteps(*node_, "gpt").rbegin()->first;
  const std::string obstacle = StepDir("gpt", first) + "/deleting";
  ASSERT_TRUE(fs::create_directory(obstacle)) << Run("list gpt");
  trainer->Signal(SIGCONT);
  EXPECT_TRUE(Await(*trainer, [&] { return trainer->Last("DURABLE") > first + 100; })) << node_->AgentLog();
  trainer->Signal(SIGSTOP);
  EXPECT_TRUE(Await(*trainer, [&] { return Manifests() == 5; })) << Run("list gpt") << node_->AgentLog();
  Said status = Run("status");
  EXPECT_EQ(status.code, 1) << status;
  EXPECT_TRUE(status.Has("step " + std::to_string(first) + " cannot be deleted")) << status;
  EXPECT_TRUE(status.Has(obstacle.substr(node_->storage().size() + 1))) << status;
  Said refused = Run("rm gpt@" + std::to_string(first));
  EXPECT_TRUE(refused.code != 0 && refused.ErrorHas("cannot be deleted")) << refused;
  fs::remove(obstacle);
  EXPECT_EQ(Run("rm gpt@" + std::to_string(first)).code, 0) << node_->AgentLog();
  EXPECT_EQ(CkptctlTest::Await(0).code, 0) << Run("status");
  trainer->Kill();
}

// Attempts die one after the other between image and sidecar, before they commit anything. The next one that runs
// removes what they left, without a commit of its own; what it may need stays.
TEST_F(DeletionE2eTest, RemainsOfDeadAttemptsGo) {
  if (!Failpoints()) GTEST_SKIP() << "skipped: this build has no failpoints (CKPTD_FAILPOINTS=OFF)";
  Train("gpt");
  for (int i = 0; i < 2; ++i) {
    ASSERT_NO_FATAL_FAILURE(Reboot("flush.after_image"));
    auto trainer = node_->Train(Args("--job gpt --step-ms 10 --every 7 --steps 100000"));
    ASSERT_EQ(node_->agent()->Wait(), -SIGKILL) << node_->AgentLog();
    trainer->Kill();
  }
  const auto of = [&](const std::string& attempt) { return FilesWith(node_->storage(), attempt + "/"); };
  const auto remains = [&] { return of(".a0002").size() + of(".a0003").size(); };
  ASSERT_FALSE(of(".a0003").empty()) << testing::PrintToString(ListFiles(node_->storage()));
  const std::string image = node_->storage() + "/" + of(".a0003").front();
  const std::string notes = image.substr(0, image.rfind('/')) + "/notes.txt";
  std::ofstream(notes) << "not ours";
  ASSERT_NO_FATAL_FAILURE(Reboot());
  auto trainer = node_->Train(Args("--job gpt --step-ms 10 --every 1000000 --steps 1000000"));
  EXPECT_EQ(NumberField(Restored(*trainer), "step"), 20u);
  EXPECT_TRUE(Await(*trainer, [&] { return remains() == 1; })) << testing::PrintToString(ListFiles(node_->storage()));
  EXPECT_TRUE(std::filesystem::exists(notes)) << "a file that is not ours";
  EXPECT_TRUE(of(".a0002").empty());
  EXPECT_EQ(trainer->Last("DURABLE"), 0u);
  EXPECT_TRUE(fs::exists(StepDir("gpt", 20) + "/manifest.json"));
  trainer->Kill();
}

}  // namespace
}  // namespace ckptd::harness
