// Storage that does not answer: an ext4 that is frozen. Training and captures go on, what waits is told which call
// hangs, SIGTERM ends the agent in time, and after the thaw everything becomes durable.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "tests/integration/harness.h"
#include "tests/integration/loop_disk.h"
#include "tests/integration/raw_trainer.h"

namespace ckptd::harness {
namespace {

constexpr char kEndless[] = "--steps 100000000 --every 5 --step-ms 5 --close-ms 0";

class StorageHang : public testing::Test {
 protected:
  void SetUp() override {
    setenv("TSAN_OPTIONS", ThreadsMayBeLeft().c_str(), 1);
    if (!disk_.mounted()) GTEST_SKIP() << disk_.skipped();
    NodeOptions options;
    options.storage = disk_.path() + "/storage";
    options.settings["storage.timeout"] = "\"1s\"";
    options.settings["agent.drain_timeout"] = "\"2s\"";
    options.settings["region.slots"] = "4";  // so many captures fit before saves are dropped for want of a slot
    if (WithAdmin()) options.settings["agent.admin_socket"] = "\"" + disk_.path() + ".sock\"";
    node_ = std::make_unique<Node>(options);
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  }
  void TearDown() override { unlink((disk_.path() + ".sock").c_str()); }

  // Not where the agent is built without it, or gRPC would give false alarms.
  static bool WithAdmin() { return access((BinaryDirectory() + "/ckptctl").c_str(), X_OK) == 0; }

  // `text` stands in the agent's log, in time.
  testing::AssertionResult Logged(const std::string& text, Millis timeout = Millis(6000)) const {
    for (TimePoint end = std::chrono::steady_clock::now() + timeout; std::chrono::steady_clock::now() < end;) {
      if (node_->AgentLog().find(text) != std::string::npos) return testing::AssertionSuccess();
      std::this_thread::sleep_for(Millis(20));
    }
    return testing::AssertionFailure() << "no \"" << text << "\" in: " << node_->AgentLog();
  }

  // A trainer whose saves become durable.
  std::unique_ptr<Child> Training() {
    auto trainer = node_->Train(Args(kEndless));
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(trainer->WaitFor("DURABLE")) << trainer->Errors() << node_->AgentLog();
    return trainer;
  }
  void ExpectDurable(Child& trainer, uint64_t step) const {
    while (trainer.Last("DURABLE") < step) {
      ASSERT_TRUE(trainer.WaitFor("DURABLE")) << "step " << step << ": " << trainer.Errors() << node_->AgentLog();
    }
  }

  // Steps that are captured and not durable.
  static int CapturedOnly(const Child& trainer) {
    const uint64_t durable = trainer.Last("DURABLE");
    return static_cast<int>(std::count_if(trainer.lines().begin(), trainer.lines().end(), [&](const auto& line) {
      constexpr std::string_view kSays = "CAPTURED ";
      return line.starts_with(kSays) && std::strtoull(line.c_str() + kSays.size(), nullptr, 10) > durable;
    }));
  }

  LoopDisk disk_{96};
  std::unique_ptr<Node> node_;  // gone before the disk
};

TEST_F(StorageHang, AtAFlush) {
  auto trainer = Training();
  disk_.Freeze();
  trainer->WaitFor("never", Millis(20));  // all that it has said
  const uint64_t step = trainer->Last("STEP");
  trainer->WaitFor("never", Millis(3000));
  EXPECT_GT(trainer->Last("STEP"), step + 100) << "training waited for the storage";
  // Four slots: one is being written and hangs, and the others take what comes; then saves are dropped, and say so.
  EXPECT_GE(CapturedOnly(*trainer), 3);
  const std::string dropped = trainer->WaitFor("DROPPED").value_or("a save had no slot and said nothing");
  EXPECT_NE(dropped.find("NO_FREE_SLOT"), std::string::npos) << dropped;
  EXPECT_TRUE(Logged("storage.hung"));
  EXPECT_TRUE(Logged(disk_.path() + "/storage/trainer/"));
  disk_.Thaw();
  ExpectDurable(*trainer, trainer->Last("CAPTURED"));
  const uint64_t durable = trainer->Last("DURABLE");
  EXPECT_TRUE(trainer->WaitFor("CAPTURED")) << "saves did not go on";
  EXPECT_TRUE(Logged("storage.answers"));
  trainer->Kill();
  node_->KillAgent();
  node_->LoseRegion();
  ASSERT_TRUE(node_->StartAgent());
  auto again = node_->Train(Args(kEndless));
  EXPECT_GE(NumberField(Restored(*again), "step"), durable);
}

TEST_F(StorageHang, AtARestore) {
  Training()->Kill();
  disk_.Freeze();
  auto waits = std::chrono::steady_clock::now();
  auto trainer = node_->Train(Args("--steps 5"));
  EXPECT_EQ(trainer->Wait(), 1) << node_->AgentLog();
  EXPECT_LT(std::chrono::steady_clock::now() - waits, std::chrono::seconds(10)) << "its own patience is a minute";
  EXPECT_NE(trainer->Errors().find("STORAGE_HUNG"), std::string::npos) << trainer->Errors();
  EXPECT_NE(trainer->Errors().find("create " + disk_.path() + "/storage/trainer/"), std::string::npos)
      << trainer->Errors();
  disk_.Thaw();
  auto again = node_->Train(Args(kEndless));
  EXPECT_GT(NumberField(Restored(*again), "step"), 0u);
  EXPECT_TRUE(again->WaitFor("DURABLE")) << node_->AgentLog();
}

TEST_F(StorageHang, AtARestoreOfTwoRanksWithLittlePatience) {
  disk_.Freeze();
  auto zero = node_->Train(Args("--world 2 --rank 0 --steps 5 --restore-ms 1500"));
  auto one = node_->Train(Args("--world 2 --rank 1 --steps 5"));
  for (Child* rank : {zero.get(), one.get()}) {
    EXPECT_EQ(rank->Wait(), 1) << node_->AgentLog();
    EXPECT_NE(rank->Errors().find("STORAGE_HUNG"), std::string::npos) << rank->Errors();
    EXPECT_NE(rank->Errors().find(disk_.path()), std::string::npos) << rank->Errors();
  }
  disk_.Thaw();
  zero = node_->Train(Args(kEndless + std::string(" --world 2 --rank 0")));
  one = node_->Train(Args(kEndless + std::string(" --world 2 --rank 1")));
  EXPECT_TRUE(zero->WaitFor("DURABLE")) << zero->Errors() << one->Errors() << node_->AgentLog();
}

// The old agent sleeps in the kernel until the thaw, with every descriptor open; its successor starts all the same, on
// a storage that does not answer it either.
TEST_F(StorageHang, SigtermOfTheAgent) {
  auto trainer = Training();
  disk_.Freeze();
  ASSERT_TRUE(Logged("storage.hung"));
  trainer->WaitFor("never", Millis(100));
  const uint64_t captured = trainer->Last("CAPTURED");
  std::unique_ptr<Child> old = node_->TakeAgent();
  auto began = std::chrono::steady_clock::now();
  old->Signal(SIGTERM);
  ASSERT_TRUE(Logged("agent.end"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(2500)) << "drain_timeout is 2 s";
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  EXPECT_EQ(old->Wait(Millis(0)), Child::kHangs) << "the freeze did not hold it: this test shows nothing";
  const uint64_t step = trainer->Last("STEP");
  trainer->WaitFor("never", Millis(500));
  EXPECT_GT(trainer->Last("STEP"), step) << "training waited";
  disk_.Thaw();
  EXPECT_EQ(old->Wait(), 0);
  ExpectDurable(*trainer, captured);
  EXPECT_TRUE(trainer->WaitFor("CAPTURED")) << "saves did not go on: " << node_->AgentLog();
  trainer->Kill();
  auto again = node_->Train(Args(kEndless));
  EXPECT_GE(NumberField(Restored(*again), "step"), trainer->Last("CAPTURED"));
}

// What a slow machine names last may wait long enough to be told of the storage first.
bool ToldOf(std::string_view sentence, RawTrainer* trainer) {
  for (std::string error = trainer->NextError(); !error.empty(); error = trainer->NextError()) {
    if (error.find(sentence) != std::string::npos) return true;
  }
  return false;
}

// Each asks something of the storage that is not answered. What is forgotten with it is bounded, so that there is room
// in the queue for the restores of others.
TEST_F(StorageHang, JobsNamedOneAfterTheOtherFillNoQueue) {
  disk_.Freeze();
  RawTrainer trainer(node_->socket());
  trainer.Hello();
  size_t named = 0;
  while (named < 1024 + 64) trainer.Visit("job" + std::to_string(named++), 0, 1);
  for (int i = 0; i < 8; ++i) trainer.Visit("job" + std::to_string(named++), 0, 1);  // what was under way before
  EXPECT_TRUE(ToldOf("1024 jobs on this node, as many as one user may have: 1024 in use", &trainer))
      << node_->AgentLog();
  disk_.Thaw();
  auto next = node_->Train(Args("--steps 1 --restore-ms 30000"));
  for (int i = 0; i < 300 && next->Wait() != 0; ++i) next = node_->Train(Args("--steps 1 --restore-ms 30000"));
  EXPECT_EQ(next->Wait(), 0) << next->Errors() << node_->AgentLog();
}

TEST_F(StorageHang, OperatorsAreTold) {
  if (!WithAdmin()) GTEST_SKIP() << "skipped: built without ckptctl";
  auto trainer = Training();
  disk_.Freeze();
  ASSERT_TRUE(Logged("storage.hung"));
  const std::vector<std::string> environment = {"CKPTD_ADMIN_SOCKET=" + disk_.path() + ".sock", "NO_COLOR=1"};
  const std::string errors = node_->base() + "/ckptctl.log";
  Child list({{BinaryDirectory() + "/ckptctl", "pin", "trainer@latest"}, environment, errors});  // hangs
  Child status({{BinaryDirectory() + "/ckptctl", "status"}, environment, errors});
  EXPECT_EQ(status.Wait(), 1) << "a script sees by the exit code that the storage takes nothing";
  std::string said;
  for (const std::string& line : status.lines()) said += line + "\n";
  EXPECT_NE(said.find("hung: "), std::string::npos) << said;
  EXPECT_NE(said.find(disk_.path() + "/storage/trainer/"), std::string::npos) << said;
  EXPECT_NE(said.find("look at its server"), std::string::npos) << said;
  // A worker of the operators' hangs as well, and holds nothing up.
  auto began = std::chrono::steady_clock::now();
  node_->agent()->Signal(SIGTERM);
  ASSERT_TRUE(Logged("agent.end"));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::milliseconds(2500));
  disk_.Thaw();
  EXPECT_EQ(node_->agent()->Wait(), 0);
}

}  // namespace
}  // namespace ckptd::harness
