// Trainers in containers: namespaces of their own, and of the agent they see its socket alone. Its memory and storage
// are elsewhere, process numbers are others, and where users have a namespace too the trainer is root in there.
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "tests/integration/harness.h"

namespace ckptd::harness {
namespace {

constexpr char kLine[] = "--every 5 --step-ms 5";

class Containers : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs root";
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
  }

  // What a command line begins with that is to run in one.
  [[nodiscard]] std::vector<std::string> Container(std::vector<std::string> prefix,
                                                   const std::string& users = "") const {
    const std::string hide =
        "for each in /dev/shm /run " + node_.storage() + "; do mount -t tmpfs none $each || exit 1; done";
    std::vector<std::string> more =
        Args("unshare --mount --pid --fork --kill-child --mount-proc --ipc --uts --net " + users);
    more.insert(more.end(), {"sh", "-c", hide + "; exec \"$@\"", "container"});
    prefix.insert(prefix.end(), more.begin(), more.end());
    return prefix;
  }

  // Killed in the middle, by the end of its container, and run to its end in another one from the agent's memory.
  void ExpectResumes(const std::vector<std::string>& container) {
    auto first = node_.Train(Args(std::string(kLine) + " --steps 100000"), container);
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(first->WaitFor("CAPTURED")) << first->Errors() << node_.AgentLog();
    first->Kill();
    // The kernel ends what is in the container a moment after the command that made it.
    ASSERT_TRUE(Died()) << node_.AgentLog();
    const uint64_t captured = first->Last("CAPTURED");
    const std::vector<std::string> line =
        Args(std::string(kLine) + " --steps " + std::to_string(first->Last("STEP") + 50));
    auto second = node_.Train(line, container);
    const std::string restored = Restored(*second);
    EXPECT_GE(NumberField(restored, "step"), captured) << restored;
    EXPECT_EQ(NumberField(restored, "source"), 1u) << "the agent's memory: " << restored << node_.AgentLog();
    EXPECT_EQ(second->Wait(), 0) << second->Errors() << node_.AgentLog();
    EXPECT_EQ(second->lines().back(), node_.ExpectedDigest(line));
  }

  // The agent has seen it.
  [[nodiscard]] bool Died() const {
    for (int i = 0; i < 400; ++i, usleep(50'000)) {
      if (node_.AgentLog().find("op=trainer.died") != std::string::npos) return true;
    }
    return false;
  }

  Node node_{{.region = "", .storage = "", .settings = {{"security.socket_mode", "\"0666\""}}}};
};

TEST_F(Containers, ATrainerInOneNeedsTheSocketAlone) { ExpectResumes(Container({})); }

TEST_F(Containers, SoDoesOneOfAUserWhoIsRootInThere) {
  const std::vector<std::string> container = Container(AsUser("61234", "61234"), "--user --map-root-user");
  std::vector<std::string> probe = container;
  probe.insert(probe.end(), {"true"});
  if (Child({probe, {}, node_.base() + "/probe"}).Wait() != 0) GTEST_SKIP() << "users may make no namespaces here";
  ExpectResumes(container);
  std::ifstream record(node_.storage() + "/trainer/attempts/a0002.json");
  const std::string text{std::istreambuf_iterator<char>(record), {}};
  EXPECT_NE(text.find("\"user\": \"61234\""), std::string::npos) << "whose job it is, outside: " << text;
}

}  // namespace
}  // namespace ckptd::harness
