// A restore that finds no memory for what storage has: refused with the numbers, and it costs nothing. The next
// restore, when there is room, finds the same step, not an older one.
#include <signal.h>

#include "tests/integration/harness.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

constexpr char kState[] = "--bytes 20000000";  // two slots of 20 MB

TEST(RestoreRoom, ATmpfsThatIsTooSmallLosesNoStep) {
  const Tmpfs tmpfs("100m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  NodeOptions options;
  options.region = tmpfs.path();
  Node node(options);
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();
  auto first = node.Train(Args(std::string(kState) + " --steps 10 --every 5 --step-ms 40 --kill-at 10:durable"));
  ASSERT_EQ(first->Wait(), -SIGKILL) << "step 10 did not become durable: " << node.AgentLog();
  node.KillAgent();
  node.LoseRegion();
  ASSERT_TRUE(node.StartAgent()) << node.AgentLog();

  ASSERT_TRUE(tmpfs.Resize("10m"));
  auto refused = node.Train(Args(std::string(kState) + " --steps 20"));
  EXPECT_EQ(refused->Wait(), 1);
  EXPECT_NE(refused->Errors().find("REGION_FULL"), std::string::npos) << refused->Errors();
  EXPECT_NE(refused->Errors().find("needs 40"), std::string::npos) << refused->Errors() << node.AgentLog();

  ASSERT_TRUE(tmpfs.Resize("100m"));
  const std::string line = std::string(kState) + " --steps 40";
  auto last = node.Train(Args(line + " --every 5 --step-ms 2"));
  EXPECT_EQ(NumberField(Restored(*last), "step"), 10u) << node.AgentLog();
  EXPECT_EQ(last->Wait(), 0) << last->Errors() << node.AgentLog();
  EXPECT_EQ(last->lines().back(), node.ExpectedDigest(Args(line)));
}

}  // namespace
}  // namespace ckptd::harness
