// Old processes that do not know that they are old, and an agent that is stopped or dies between any two messages.
#include <signal.h>

#include <set>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

constexpr char kBig[] = "--bytes 64000000 --every 2 --step-ms 4";
constexpr char kSmall[] = "--every 5 --step-ms 5";

void ExpectSameEnd(Node& node, Child& trainer, const std::string& line) {
  EXPECT_EQ(trainer.Wait(), 0) << trainer.Errors() << node.AgentLog();
  EXPECT_EQ(trainer.lines().back(), node.ExpectedDigest(Args(line)));
}

// A process is stopped in the middle of a capture; the agent restarts, so that the rank is free; a new process goes on
// and fills slots; then the old one wakes and copies on into whatever it has mapped.
TEST(Fencing, StoppedProcessWakesAfterTheNextAttemptFilledSlots) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto old = node.Train(Args(std::string(kBig) + " --steps 100000"));
  ASSERT_TRUE(old->WaitFor("CAPTURED"));
  ASSERT_TRUE(old->WaitFor("SAVE"));
  old->Signal(SIGSTOP);
  old->WaitFor("never", Millis(20));
  uint64_t reported = old->Last("CAPTURED");
  node.KillAgent();
  ASSERT_TRUE(node.StartAgent());
  // Time enough to make a slot anew, however fast a build computes, and few enough for one that is slow.
  const std::string line = std::string(kBig) + " --steps 40 --step-ms 25";
  auto next = node.Train(Args(line));
  std::string restored = Restored(*next);
  EXPECT_GE(NumberField(restored, "step"), reported);
  EXPECT_GT(NumberField(restored, "attempt"), 1u);
  ASSERT_TRUE(next->WaitFor("CAPTURED")) << node.AgentLog();
  ASSERT_TRUE(next->WaitFor("CAPTURED"));
  old->Signal(SIGCONT);
  ASSERT_TRUE(old->WaitFor("STEP")) << "an outdated process trains on, it is only not saved";
  next->Kill();
  uint64_t captured = next->Last("CAPTURED");
  auto last = node.Train(Args(line));
  if (last->WaitFor("RESTORED", Millis(3000)) == std::nullopt) {  // the old process claimed the rank before
    old->Kill();
    last = node.Train(Args(line));
    Restored(*last);
  }
  EXPECT_GE(last->Last("RESTORED"), 0u);
  for (const std::string& text : last->lines()) {
    if (text.rfind("RESTORED", 0) == 0) {
      EXPECT_GE(NumberField(text, "step"), captured) << node.AgentLog();
    }
  }
  ExpectSameEnd(node, *last, line);
}

// Both attempts save a step 10; what is restored is that of the newer one (the trainer compares every element: another
// seed is another state).
TEST(Fencing, TwoAttemptsWithTheSameStepNumber) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args("--seed 1 --steps 20 --every 5 --step-ms 5 --await-at 10 --kill-at 10:captured"));
  ASSERT_EQ(first->Wait(), -SIGKILL);
  auto second =
      node.Train(Args("--seed 2 --steps 20 --every 5 --step-ms 5 --want fresh --await-at 10 --kill-at 10:captured"));
  ASSERT_EQ(second->Wait(), -SIGKILL);
  std::string line = "--seed 2 --steps 20 --every 5 --step-ms 5";
  auto third = node.Train(Args(line));
  std::string restored = Restored(*third);
  EXPECT_EQ(NumberField(restored, "step"), 10u);
  EXPECT_EQ(NumberField(restored, "snapshot_attempt"), 2u);
  ExpectSameEnd(node, *third, line);
}

// Gate deadline 300 ms; the agent is away for two seconds. Captures do not need it, so training hardly notices.
TEST(Fencing, StoppedAgentDelaysTrainingByTheDeadlineAtMostOnce) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  auto trainer = node.Train(Args(std::string(kSmall) + " --steps 100000 --gate-ms 300"));
  ASSERT_TRUE(trainer->WaitFor("CAPTURED"));
  node.agent()->Signal(SIGSTOP);
  auto begin = std::chrono::steady_clock::now();
  uint64_t longest = 0;
  for (auto last = begin; last - begin < Millis(2000);) {
    ASSERT_TRUE(trainer->WaitFor("STEP", Millis(1000))) << "training waits for a stopped agent";
    auto now = std::chrono::steady_clock::now();
    longest = std::max<uint64_t>(longest, std::chrono::duration_cast<Millis>(now - last).count());
    last = now;
  }
  node.agent()->Signal(SIGCONT);
  printf("longest step beside a stopped agent: %lu ms\n", longest);
  EXPECT_LT(longest, 300u + 200u);
  EXPECT_TRUE(trainer->WaitFor("CAPTURED")) << "saves did not go on";
}

// The agent stops for a moment, or dies, after each of its messages in turn: counted by the sends it made.
class BetweenMessages : public testing::TestWithParam<int> {};

TEST_P(BetweenMessages, AgentDies) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  std::string line = "--every 3 --step-ms 3 --steps 45";
  auto trainer = node.Train(Args(line));
  trainer->WaitFor("never", Millis(GetParam()));
  node.KillAgent();
  ASSERT_TRUE(node.StartAgent());
  ExpectSameEnd(node, *trainer, line);
}

TEST_P(BetweenMessages, AgentIsStopped) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  std::string line = "--every 3 --step-ms 3 --steps 45 --gate-ms 200";
  auto trainer = node.Train(Args(line));
  trainer->WaitFor("never", Millis(GetParam()));
  node.agent()->Signal(SIGSTOP);
  trainer->WaitFor("never", Millis(400));
  node.agent()->Signal(SIGCONT);
  ExpectSameEnd(node, *trainer, line);
  EXPECT_LE(std::count(trainer->lines().begin(), trainer->lines().end(), "GATE GATE_DEADLINE"), 1);
}

INSTANTIATE_TEST_SUITE_P(Milliseconds, BetweenMessages, testing::Range(2, 60, 6));

}  // namespace
}  // namespace ckptd::harness
