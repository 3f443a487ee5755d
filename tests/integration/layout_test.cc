// The model changes between two runs, or its layout under saves.
#include <signal.h>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

constexpr char kRun[] = " --every 5 --step-ms 5";

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
  ASSERT_TRUE(node.StartAgent());
  auto first = node.Train(Args(std::string("--tensors 4 --bytes 65536 --steps 20") + kRun));
  ASSERT_EQ(first->Wait(), 0);
  std::string line = "--tensors 6 --bytes 64000000 --every 1 --steps 60";
  auto second = node.Train(Args(line + " --want fresh"));
  ASSERT_TRUE(second->WaitFor("DROPPED 1 LAYOUT_PREPARING"));
  node.KillAgent();
  second->Kill();
  ASSERT_TRUE(node.StartAgent());
  auto third = node.Train(Args(line + " --step-ms 20"));
  EXPECT_EQ(NumberField(Restored(*third), "step"), 0u) << "a step before the fresh start came back";
  EXPECT_EQ(third->Wait(), 0) << third->Errors() << node.AgentLog();
  EXPECT_EQ(third->lines().back(), node.ExpectedDigest(Args(line)));
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

}  // namespace
}  // namespace ckptd::harness
