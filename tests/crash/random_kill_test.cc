// SIGKILL at random moments, hundreds of times: of trainers, of the agent under a running trainer, of both together, of
// one of two ranks. After each: nothing that was reported as captured or durable is lost, what is restored is whole
// (the trainer compares every element), and at the end nothing is left behind and nothing has grown.
//
// CKPTD_SEED replays a run's choices (not the kernel's scheduling); CKPTD_KILLS changes how many.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/integration/harness.h"
#include "tests/integration/sanitized.h"

namespace ckptd::harness {
namespace {

constexpr char kModel[] = "--bytes 2000000 --tensors 8 --every 3";
constexpr char kEndless[] = " --step-ms 1 --steps 100000000 --close-ms 0";
constexpr uint64_t kSlackFds = 4;
constexpr uint64_t kSlackKib = 4096;
constexpr int kSlower = kSanitized ? 3 : 1;  // else a sanitized trainer is killed before it trains

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = getenv(name);
  return text == nullptr ? otherwise : strtoull(text, nullptr, 10);
}

class RandomKill : public testing::Test {
 protected:
  void SetUp() override {
    seed_ = FromEnvironment("CKPTD_SEED", std::random_device{}());
    random_.seed(seed_);
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
  }
  void TearDown() override {
    const char* kind = testing::UnitTest::GetInstance()->current_test_info()->name();
    printf("seed %lu, %s: %d kills, %d resumes, %lu steps captured, resumed from %d times the region, %d storage\n",
           seed_, kind, kills_, resumes_, captured_, from_region_, resumes_ - from_region_);
  }

  [[nodiscard]] static uint64_t Kills(uint64_t usual) { return FromEnvironment("CKPTD_KILLS", usual); }
  Millis Pause(int most) { return Millis(std::uniform_int_distribution<int>(0, most * kSlower)(random_)); }
  bool Chance(int percent) { return std::uniform_int_distribution<int>(1, 100)(random_) <= percent; }

  std::unique_ptr<Child> Start(const std::string& more = "") { return node_.Train(Args(kModel + (kEndless + more))); }
  // Lets it run for so long, reading what it says.
  static void Run(Child& child, Millis time) { (void)child.WaitFor("never", time); }

  // Of all ranks of one attempt: what they restored stands against what was reported before; then what they reported.
  void Judge(const std::vector<const Child*>& ranks) {
    for (const Child* rank : ranks) JudgeRestore(*rank);
    for (const Child* rank : ranks) {
      captured_ = std::max({captured_, rank->Last("CAPTURED"), rank->Last("DURABLE")});
      EXPECT_EQ(rank->Errors(), "") << "seed " << seed_;
    }
  }
  void JudgeRestore(const Child& rank) {
    for (const std::string& line : rank.lines()) {
      if (line.rfind("RESTORED", 0) != 0) continue;
      resumes_ += 1;
      from_region_ += NumberField(line, "source") == 1 ? 1 : 0;
      EXPECT_GE(NumberField(line, "step"), captured_) << "a captured step was lost; seed " << seed_;
    }
  }

  // A last run to a fixed end, compared with one that nobody disturbed.
  void ExpectSameEnd() {
    std::string to = std::string(kModel) + " --steps " + std::to_string(captured_ + 500);
    auto last = node_.Train(Args(to));
    EXPECT_EQ(last->Wait(), 0) << last->Errors();
    Judge({last.get()});
    EXPECT_EQ(last->lines().back(), node_.ExpectedDigest(Args(to))) << "seed " << seed_;
    EXPECT_EQ(node_.StopAgent(), 0);
    ExpectNothingLeftBehind(node_);
  }
  // The agent may still be letting go of the trainer that was killed last.
  void ExpectNoGrowth(const Usage& before) {
    Usage now = UsageOf(node_.agent()->pid());
    for (int i = 0; i < 100 && now.fds > before.fds + kSlackFds; ++i) {
      std::this_thread::sleep_for(Millis(50));
      now = UsageOf(node_.agent()->pid());
    }
    EXPECT_LE(now.fds, before.fds + kSlackFds);
    EXPECT_LE(now.threads, before.threads);
    if (kSanitized) return;  // its own memory grows
    EXPECT_LE(now.anonymous_kib, before.anonymous_kib + kSlackKib);
  }

  Node node_;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  uint64_t captured_ = 0;  // highest step that was reported as captured or durable
  int kills_ = 0;
  int resumes_ = 0;
  int from_region_ = 0;
};

TEST_F(RandomKill, Trainer) {
  Usage early;
  uint64_t kills = Kills(200);
  for (uint64_t i = 0; i < kills && !HasFailure(); ++i) {
    auto trainer = Start();
    if (Chance(60)) Restored(*trainer);  // else the kill may come before or during the restore
    Run(*trainer, Pause(80));
    EXPECT_EQ(trainer->Kill(), -SIGKILL);
    kills_ += 1;
    Judge({trainer.get()});
    if (i == kills / 10) early = UsageOf(node_.agent()->pid());
  }
  EXPECT_GT(resumes_, static_cast<int>(kills / 2)) << "killed too early to prove anything";
  EXPECT_TRUE(node_.agent()->running());
  ExpectNoGrowth(early);
  ExpectSameEnd();
}

// The trainer lives through it all, and its saves go on after each restart.
TEST_F(RandomKill, Agent) {
  auto trainer = Start();
  ASSERT_TRUE(trainer->WaitFor("CAPTURED")) << node_.AgentLog();
  for (uint64_t i = 0, kills = Kills(200); i < kills && !HasFailure(); ++i) {
    Run(*trainer, Pause(80));
    node_.KillAgent();
    kills_ += 1;
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    if (i % 5 != 0) continue;
    ASSERT_TRUE(trainer->WaitFor("CAPTURED", kLong)) << "saves did not go on, seed " << seed_;
  }
  trainer->Kill();
  Judge({trainer.get()});
  ExpectSameEnd();
}

TEST_F(RandomKill, BothTogether) {
  uint64_t kills = Kills(60);
  for (uint64_t i = 0; i < kills && !HasFailure(); ++i) {
    auto trainer = Start();
    Run(*trainer, Pause(150));
    bool agent_first = Chance(50);
    if (agent_first) node_.KillAgent();
    trainer->Kill();
    if (!agent_first) node_.KillAgent();
    kills_ += 2;
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    Judge({trainer.get()});
  }
  EXPECT_GT(resumes_, static_cast<int>(kills / 6));
  ExpectSameEnd();
}

// One of two ranks dies, at times the agent with it; then all ranks are restarted, as a launcher does.
TEST_F(RandomKill, OneOfTwoRanks) {
  uint64_t kills = Kills(40);
  for (uint64_t i = 0; i < kills && !HasFailure(); ++i) {
    auto zero = Start(" --world 2 --rank 0");
    auto one = Start(" --world 2 --rank 1");
    Run(*zero, Pause(150));
    (Chance(50) ? zero : one)->Kill();
    if (Chance(20)) {
      node_.KillAgent();
      ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    }
    Run(*zero, Pause(20));
    zero->Kill();
    one->Kill();
    kills_ += 1;
    Judge({zero.get(), one.get()});
  }
  EXPECT_GT(resumes_, static_cast<int>(kills / 4));
}

}  // namespace
}  // namespace ckptd::harness
