// One of two ranks dies, and nobody restarts it: the other one is told at once that its last save is lost, instead of
// waiting for it with all its patience, and what both had captured is restored.
#include <signal.h>

#include <chrono>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

constexpr char kZero[] = " --world 2 --rank 0 --close-ms 25000";
constexpr char kOne[] = " --world 2 --rank 1";

class DeadRank : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(node_.StartAgent()); }

  // Rank 1 dies at `point`; rank 0 saves `last` as its last step. The end of both.
  void Train(const std::string& line, const std::string& point) {
    zero_ = node_.Train(Args(line + kZero));
    auto one = node_.Train(Args(line + kOne + " --kill-at " + point));
    EXPECT_EQ(one->Wait(), -SIGKILL) << one->Errors() << node_.AgentLog();
    const auto died = std::chrono::steady_clock::now();
    EXPECT_EQ(zero_->Wait(), 0) << zero_->Errors() << node_.AgentLog();
    EXPECT_LT(std::chrono::steady_clock::now() - died, std::chrono::seconds(10)) << "it waited for a dead rank";
  }
  // Both ranks again.
  void ExpectRestored(const std::string& line, uint64_t step) {
    auto zero = node_.Train(Args(line + kZero));
    auto one = node_.Train(Args(line + kOne));
    EXPECT_EQ(NumberField(Restored(*zero), "step"), step) << node_.AgentLog();
    EXPECT_EQ(NumberField(Restored(*one), "step"), step);
    EXPECT_EQ(zero->Wait(), 0) << zero->Errors() << node_.AgentLog();
    EXPECT_EQ(one->Wait(), 0) << one->Errors();
    EXPECT_GT(zero->Last("DURABLE"), step) << node_.AgentLog();
  }

  Node node_;
  std::unique_ptr<Child> zero_;
};

// It has no bell yet, and so it never tells how far it is.
TEST_F(DeadRank, BeforeItsLayoutIsReady) {
  Train("--steps 5 --every 5 --step-ms 100", "0:restore");
  EXPECT_EQ(zero_->Last("DROPPED"), 5u) << testing::PrintToString(zero_->lines());
  EXPECT_EQ(zero_->Last("CAPTURED"), 0u);
  ExpectRestored("--steps 20 --every 5 --step-ms 40", 0);
}

TEST_F(DeadRank, AfterACapture) {
  Train("--steps 20 --every 10 --step-ms 100", "10:captured");
  EXPECT_EQ(zero_->Last("CAPTURED"), 10u);
  EXPECT_EQ(zero_->Last("DROPPED"), 20u) << testing::PrintToString(zero_->lines());
  ExpectRestored("--steps 20 --every 10 --step-ms 100", 10);
}

}  // namespace
}  // namespace ckptd::harness
