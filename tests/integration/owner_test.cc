// The storage says that a job is another user's: it is refused, its name is free again on this node, and memory keeps
// what it holds of it.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr char kJob[] = "trainer";

class Owner : public testing::Test {
 protected:
  // A run that ends well; step 20 is durable.
  void SetUp() override {
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    auto trainer = node_.Train(Args("--steps 20 --every 5 --step-ms 5"));
    ASSERT_EQ(trainer->Wait(), 0) << trainer->Errors() << node_.AgentLog();
    ASSERT_EQ(trainer->Last("DURABLE"), 20u);
  }

  // As the record of who coordinates would be if `to` had trained the job.
  void Rewrite(const std::string& from, const std::string& to) const {
    const std::string file = node_.storage() + "/" + kJob + "/attempts/a0001.json";
    std::ifstream in(file);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    const std::string old = "\"user\": \"" + from + "\"";
    const size_t at = text.find(old);
    ASSERT_NE(at, text.npos) << text;
    std::ofstream(file) << text.replace(at, old.size(), "\"user\": \"" + to + "\"");
  }

  // Whatever the agent puts off until it has answered is done when it answers the second time.
  void ExpectRefused() {
    for (int i = 0; i < 2; ++i) {
      auto trainer = node_.Train(Args("--steps 40"));
      EXPECT_EQ(trainer->Wait(), 1);
      EXPECT_NE(trainer->Errors().find("job trainer belongs to uid 61234 on the storage"), std::string::npos)
          << trainer->Errors() << node_.AgentLog();
    }
  }

  const std::string me_ = std::to_string(geteuid());
  Node node_;
};

TEST_F(Owner, ARefusalRemovesNoSnapshotFromMemory) {
  ASSERT_NO_FATAL_FAILURE(Rewrite(me_, "61234"));
  ExpectRefused();
  ASSERT_NO_FATAL_FAILURE(Rewrite("61234", me_));
  auto again = node_.Train(Args("--steps 20"));
  const std::string restored = Restored(*again);
  EXPECT_EQ(NumberField(restored, "step"), 20u) << node_.AgentLog();
  EXPECT_EQ(NumberField(restored, "source"), 1u) << "from memory: " << restored;
}

TEST_F(Owner, ANameThatHoldsNothingHereIsFreeAgain) {
  node_.KillAgent();
  node_.LoseRegion();
  ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
  ASSERT_NO_FATAL_FAILURE(Rewrite(me_, "61234"));
  ExpectRefused();
  auto other = node_.Train(Args("--job other --steps 1"));
  EXPECT_EQ(other->Wait(), 0) << other->Errors() << node_.AgentLog();
  EXPECT_TRUE(fs::exists(node_.region() + "/r/other"));
  EXPECT_FALSE(fs::exists(node_.region() + "/r/" + kJob));
}

}  // namespace
}  // namespace ckptd::harness
