// A job that restarts for weeks: what its attempts leave on storage stays little, and nothing depends on what went.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/integration/ctl_fixture.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

class AttemptsE2eTest : public CkptctlTest {
 protected:
  [[nodiscard]] fs::path Attempts() const { return node_->storage() + "/gpt/attempts"; }
  [[nodiscard]] fs::path Kept() const { return dir_ + "/kept"; }

  // One attempt: it restores `from`, saves a step, and ends. Its records are copied before the next one prunes them.
  void Restart(uint64_t from, uint64_t to) {
    auto trainer =
        node_->Train(Args("--job gpt --step-ms 20 --every " + std::to_string(to) + " --steps " + std::to_string(to)));
    EXPECT_EQ(NumberField(Restored(*trainer), "step"), from) << node_->AgentLog();
    ASSERT_EQ(trainer->Wait(), 0) << trainer->Errors() << node_->AgentLog();
    EXPECT_EQ(trainer->lines().back(), node_->ExpectedDigest(Args("--steps " + std::to_string(to))));
    CopyRecords(Attempts(), Kept());
  }
  static void CopyRecords(const fs::path& from, const fs::path& to) {
    fs::create_directories(to);
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.path().extension() != ".json") continue;
      std::error_code gone;  // pruned meanwhile
      fs::copy_file(entry.path(), to / entry.path().filename(), fs::copy_options::skip_existing, gone);
    }
  }
  static size_t Records(const fs::path& directory) {
    const fs::directory_iterator all(directory);
    return static_cast<size_t>(
        std::count_if(begin(all), end(all), [](const auto& entry) { return entry.path().extension() == ".json"; }));
  }
  // What list says, but for the ages, and the widths that they give to columns.
  std::string Listed() {
    const std::string said = std::regex_replace(Run("list gpt").out, std::regex("[0-9.]+ [a-z]+ ago"), "ago");
    return std::regex_replace(said, std::regex(" +"), " ");
  }
  // Deleting is nobody's turn: it ends some time after the attempt began.
  bool AwaitFewRecords(size_t most) {
    const TimePoint deadline = std::chrono::steady_clock::now() + kLong;
    while (Records(Attempts()) > most && std::chrono::steady_clock::now() < deadline) usleep(20'000);
    return Records(Attempts()) <= most;
  }
};

TEST_F(AttemptsE2eTest, ManyAttemptsLeaveFewRecords) {
  constexpr uint64_t kAttempts = 12;
  constexpr size_t kMost = 8;  // the newest record and decision, those of its parent and of attempts that have steps
  for (uint64_t attempt = 1; attempt <= kAttempts; ++attempt) {
    ASSERT_NO_FATAL_FAILURE(Restart((attempt - 1) * 2, attempt * 2));
  }
  EXPECT_TRUE(AwaitFewRecords(kMost)) << Records(Attempts()) << node_->AgentLog();
  EXPECT_EQ(Records(Kept()), 2 * kAttempts) << "else this test proves nothing";

  // From memory alone, and from storage alone, with what is left.
  node_->KillAgent();
  node_->LoseRegion();
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  const std::string list = Listed();
  const std::string verdicts = Run("gc --dry-run gpt").out;
  CopyRecords(Kept(), Attempts());
  EXPECT_EQ(Listed(), list) << "as if nothing had been pruned";
  EXPECT_EQ(Run("gc --dry-run gpt").out, verdicts);

  const std::string older = std::to_string(kAttempts * 2 - 2);
  Said removed = Run("rm gpt@" + older);
  EXPECT_EQ(removed.code, 0) << removed << node_->AgentLog();
  EXPECT_FALSE(Run("list gpt").Has(" " + older + " "));
  Restart(kAttempts * 2, kAttempts * 2 + 2);
  EXPECT_TRUE(AwaitFewRecords(kMost)) << "all that was put back is gone again" << node_->AgentLog();
}

}  // namespace
}  // namespace ckptd::harness
