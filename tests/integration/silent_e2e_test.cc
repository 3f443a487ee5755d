// ckptctl where nothing answers: a storage that says nothing to reads, and an agent that is stopped.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/integration/ctl_fixture.h"
#include "tests/integration/silent_fuse.h"

namespace ckptd::harness {
namespace {

class SilentTest : public CkptctlTest {
 protected:
  void SetUp() override {
    CkptctlTest::SetUp();
    NodeOptions options = Settings();
    options.settings["storage.timeout"] = "\"1s\"";
    node_.reset();
    node_ = std::make_unique<Node>(options);
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
    ASSERT_NO_FATAL_FAILURE(Train("gpt"));
  }

  [[nodiscard]] std::unique_ptr<Child> Begin(const std::string& line) const {
    std::vector<std::string> argv = Args(line);
    argv.insert(argv.begin(), BinaryDirectory() + "/ckptctl");
    return std::make_unique<Child>(
        Child::Spec{argv, {"CKPTD_ADMIN_SOCKET=" + admin(), "NO_COLOR=1"}, dir_ + "/" + argv[1]});
  }
  [[nodiscard]] std::string ErrorsOf(const std::string& command) const { return FileContent(dir_ + "/" + command); }
};

TEST_F(SilentTest, WhatMemoryHoldsCanBeHadWithoutTheStorage) {
  SilentFuse silent;
  if (!silent.skipped().empty()) GTEST_SKIP() << silent.skipped();
  ASSERT_TRUE(silent.Cover(node_->storage() + "/gpt/attempts"));
  const Said restored = Run("restore gpt@20 --to " + dir_ + "/out");
  EXPECT_EQ(restored.code, 0) << restored;
  EXPECT_TRUE(restored.Has("step 20 of attempt 1 from region")) << restored;
  EXPECT_TRUE(Content(Image(dir_ + "/out")) == Content(Image(StepDir("gpt", 20))));
  const Said list = Run("list");
  EXPECT_EQ(list.code, 1) << list;
  EXPECT_TRUE(list.Has("gpt  20 ")) << list;
  EXPECT_TRUE(list.ErrorHas("job gpt: what storage has of it cannot be read: hung: list ")) << list;
  EXPECT_EQ(Run("inspect gpt@20").code, 0);
  EXPECT_EQ(Run("trace gpt@20").code, 0);
  for (const char* line : {"verify gpt@20", "pin gpt@20"}) {
    const Said said = Run(line);
    EXPECT_EQ(said.code, 1) << said;
    EXPECT_TRUE(said.ErrorHas("next: the storage does not answer")) << said;
  }
  node_->agent()->Signal(SIGTERM);
  for (int i = 0; i < 100 && node_->AgentLog().find("agent.end") == std::string::npos; ++i) usleep(100'000);
  EXPECT_NE(node_->AgentLog().find("agent.end"), std::string::npos) << node_->AgentLog();
  EXPECT_EQ(node_->agent()->Wait(Millis(3000)), Child::kHangs)
      << "the storage did not hold it: this test shows nothing";
  silent.End();
  EXPECT_EQ(node_->agent()->Wait(), 0) << node_->AgentLog();
}

// What takes long leaves room for a question.
TEST_F(SilentTest, ListAnswersBesideAsManyStreamsAsThereMayBe) {
  SilentFuse silent;
  if (!silent.skipped().empty()) GTEST_SKIP() << silent.skipped();
  ASSERT_TRUE(silent.Cover(StepDir("gpt", older_) + "/rank-00000-of-00001.json"));
  std::vector<std::unique_ptr<Child>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(Begin("verify " + Older("gpt")));
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const Said fourth = Run("verify " + Older("gpt"));
  EXPECT_EQ(fourth.code, 1) << fourth;
  EXPECT_TRUE(fourth.ErrorHas("the agent works for too many ckptctl at once")) << fourth;
  EXPECT_EQ(Run("list gpt").code, 0);
  for (const auto& stream : streams) EXPECT_EQ(stream->Wait(Millis(0)), Child::kHangs) << ErrorsOf("verify");
  silent.End();
}

TEST_F(SilentTest, AnAgentThatIsStoppedIsNotReachable) {
  node_->agent()->Signal(SIGSTOP);
  std::vector<std::string> commands = {"status", "verify", "restore", "inspect"};
  std::vector<std::unique_ptr<Child>> asked;
  asked.push_back(Begin("status"));
  asked.push_back(Begin("verify gpt@20"));
  asked.push_back(Begin("restore gpt@20 --to " + dir_ + "/out"));
  asked.push_back(Begin("inspect gpt@20"));
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(asked[i]->Wait(Millis(60'000)), 3) << commands[i];
    const std::string errors = ErrorsOf(commands[i]);
    EXPECT_NE(errors.find("the agent does not answer: it hangs or is stopped"), std::string::npos) << errors;
  }
  node_->agent()->Signal(SIGCONT);
  EXPECT_EQ(Run("status").code, 0);
}

}  // namespace
}  // namespace ckptd::harness
