// One SIGKILL at every labelled point: every CKPTD_FP in the agent's sources, every --kill-at point of the trainer. A
// point that the scenario never reaches fails the test, so a new point must bring what reaches it.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <utility>

#include "tests/integration/harness.h"
#include "tests/integration/sanitized.h"

namespace ckptd::harness {
namespace {

// Every point named in daemon/, but those of copies on other nodes: copies_e2e_test has other nodes, and kills there.
// HitFailpoint itself is not one.
std::vector<std::string> Points() {
  std::set<std::string> points;
  std::regex pattern("CKPTD_FP(?:_STATUS)?\\(\"([^\"]+)\"\\)");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(CKPTD_SOURCE_DIR "/daemon")) {
    if (entry.path().extension() != ".cc") continue;
    std::ifstream file(entry.path());
    std::string text((std::istreambuf_iterator<char>(file)), {});
    for (std::sregex_iterator hit(text.begin(), text.end(), pattern), end; hit != end; ++hit) points.insert((*hit)[1]);
  }
  std::erase_if(points, [](const std::string& point) { return point.rfind("copy.", 0) == 0; });
  return {points.begin(), points.end()};
}

bool FailpointsCompiledIn() {
#ifdef CKPTD_FAILPOINTS
  return true;
#else
  return false;
#endif
}

class AgentKilledAt : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!FailpointsCompiledIn()) GTEST_SKIP() << "skipped: this build has no failpoints (CKPTD_FAILPOINTS=OFF)";
  }

  // Armed until it was hit. An agent that is killed while it starts is started again.
  void StartAgent() {
    std::vector<std::string> environment;
    if (!hit_) environment.push_back("CKPTD_FAILPOINTS=" + GetParam() + "=kill");
    if (node_.StartAgent(environment)) return;
    ASSERT_EQ(node_.agent()->Wait(), -SIGKILL) << node_.AgentLog();
    hit_ = true;
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
  }
  void RestartAgent() {
    node_.KillAgent();
    StartAgent();
  }

  static std::string Said(Child& trainer) {
    (void)trainer.WaitFor("never", Millis(1));
    std::string said;
    for (const std::string& line : trainer.lines()) said += line + "; ";
    return said;
  }

  // Until the trainer ends; the agent is started again when it dies of the point.
  void Attend(Child& trainer, Millis timeout = kLong) {
    while (true) {
      pollfd fds[] = {{trainer.pidfd(), POLLIN, 0}, {node_.agent()->pidfd(), POLLIN, 0}};
      ASSERT_GT(poll(fds, 2, static_cast<int>(timeout.count())), 0) << "hangs: " << node_.AgentLog() << Said(trainer);
      if (fds[0].revents != 0) return;
      ASSERT_EQ(node_.agent()->Wait(), -SIGKILL) << node_.AgentLog();
      ASSERT_FALSE(hit_) << "the agent died twice";
      hit_ = true;
      ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    }
  }

  // A whole run. What was captured before must be there, and its end must be that of an undisturbed run.
  void Train(const std::string& line, const std::string& more = "") {
    auto trainer = node_.Train(Args(line + " --every 3 --step-ms 4 " + more));
    ASSERT_NO_FATAL_FAILURE(Attend(*trainer));
    EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors() << node_.AgentLog();
    std::string restored;
    for (const std::string& text : trainer->lines()) restored = text.rfind("RESTORED", 0) == 0 ? text : restored;
    EXPECT_GE(NumberField(restored, "step"), captured_) << node_.AgentLog();
    captured_ = std::max({captured_, trainer->Last("CAPTURED"), trainer->Last("DURABLE")});
    EXPECT_EQ(trainer->lines().back(), node_.ExpectedDigest(Args(line)));
  }

  // An old process is stopped in a capture, and a new one needs its slot: the old file is replaced.
  void FenceAStoppedTrainer() {
    std::string line = "--job big --bytes 64000000 --step-ms 4";
    auto old = node_.Train(Args(line + " --every 2 --steps 100000"));
    ASSERT_TRUE(old->WaitFor("CAPTURED"));
    old->WaitFor("SAVE");
    old->Signal(SIGSTOP);
    RestartAgent();
    // Time enough to make the file, and few saves: a busy disk makes each take long.
    auto next = node_.Train(Args(line + " --every 10 --steps 200"));
    ASSERT_NO_FATAL_FAILURE(Attend(*next));
    EXPECT_EQ(next->Wait(), 0) << next->Errors() << node_.AgentLog();
    old->Signal(SIGCONT);
  }

  // Memory holds the old layout's newest slot and the new layout, not both layouts: the old one gives a slot up. The
  // new layout must be there before the last step, which on a busy machine takes more steps.
  void GrowInLittleMemory(uint64_t steps) {
    uint64_t captured = std::exchange(captured_, 0);
    std::string count = std::to_string(steps);
    Train("--job grow" + count + " --bytes 110000000 --grow-at 20 --grow-bytes 20000000 --steps " + count);
    captured_ = captured;
  }

  // The image of `step`, which memory holds, goes bad on the disk; the agent that dies while it puts it back begins
  // again.
  void LoseImageOf(const std::string& step) {
    for (int i = 0; i < 400 && !IsWhole(std::stoull(step)); ++i) usleep(50'000);
    ASSERT_TRUE(IsWhole(std::stoull(step))) << node_.AgentLog();
    const std::string image = FilesWith(node_.storage(), "/step-00000000" + step + ".").back();
    ASSERT_TRUE(image.ends_with(".safetensors")) << image;
    std::filesystem::resize_file(node_.storage() + "/" + image, 1);
    ASSERT_EQ(node_.agent()->Wait(), -SIGKILL) << node_.AgentLog();
    hit_ = true;
    ASSERT_TRUE(node_.StartAgent()) << node_.AgentLog();
    for (int i = 0; i < 200 && !Mended(); ++i) usleep(50'000);
    EXPECT_TRUE(Mended()) << node_.AgentLog();
  }
  // In the newest attempt that has any step on storage.
  [[nodiscard]] bool IsWhole(uint64_t step) const {
    std::pair<std::string, uint64_t> newest;
    for (const auto& [whole, folder] : WholeSteps(node_)) {
      newest = std::max(newest, std::pair(folder.substr(folder.rfind(".a")), whole));
    }
    return newest.second == step;
  }
  [[nodiscard]] bool Mended() const { return node_.AgentLog().find("scrub.mended") != std::string::npos; }

  Node node_{{.region = "",
              .storage = "",
              .settings = {{"region.job_quota", "\"400 MiB\""}, {"scrub.storage_every", "\"500ms\""}}}};
  bool hit_ = false;
  uint64_t captured_ = 0;
};

TEST_P(AgentKilledAt, LosesNothing) {
  ASSERT_NO_FATAL_FAILURE(StartAgent());
  ASSERT_NO_FATAL_FAILURE(Train("--steps 24"));
  node_.KillAgent();
  node_.LoseRegion();
  captured_ = WholeSteps(node_).empty() ? 0 : WholeSteps(node_).back().first;
  ASSERT_NO_FATAL_FAILURE(StartAgent());
  ASSERT_NO_FATAL_FAILURE(Train("--steps 42"));
  captured_ = 0;
  ASSERT_NO_FATAL_FAILURE(Train("--steps 12 --tensors 6", "--want fresh"));
  ASSERT_NO_FATAL_FAILURE(RestartAgent());
  ASSERT_NO_FATAL_FAILURE(Train("--steps 36 --tensors 6"));
  if (GetParam().rfind("mend.", 0) == 0) {
    ASSERT_NO_FATAL_FAILURE(LoseImageOf("36"));
  }
  for (int i = 0; i < 5 && !hit_; ++i) ASSERT_NO_FATAL_FAILURE(FenceAStoppedTrainer());
  for (uint64_t steps = 60; steps <= 960 && !hit_; steps *= 4) ASSERT_NO_FATAL_FAILURE(GrowInLittleMemory(steps));
  EXPECT_TRUE(hit_) << "no scenario reaches " << GetParam();
  ASSERT_NO_FATAL_FAILURE(RestartAgent());
  ASSERT_NO_FATAL_FAILURE(Train("--steps 45 --tensors 6"));
}

std::string PointName(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

// A sanitizer is slow, and looks for other mistakes than this test: by day it has a fourth of the points.
std::vector<std::string> PointsToKill() {
  std::vector<std::string> points = Points();
  const char* night = getenv("CKPTD_NIGHTLY");
  if (!kSanitized || (night != nullptr && *night != '\0')) return points;
  std::vector<std::string> fourth;
  for (size_t i = 0; i < points.size(); i += 4) fourth.push_back(points[i]);
  return fourth;
}

INSTANTIATE_TEST_SUITE_P(EveryPoint, AgentKilledAt, testing::ValuesIn(PointsToKill()), PointName);

TEST(LabelledKill, PointsAreFound) { EXPECT_GE(Points().size(), 30u); }

class TrainerKilledAt : public testing::TestWithParam<std::string> {};

TEST_P(TrainerKilledAt, LosesNothing) {
  Node node;
  ASSERT_TRUE(node.StartAgent());
  // Two saves and two slots: the second save, where it is killed, is not dropped however slow the storage is.
  constexpr char kRun[] = "--every 10 --step-ms 10 --steps ";
  auto first = node.Train(Args(kRun + std::string("20 --kill-at 20:") + GetParam()));
  int ended = first->Wait();
  bool on_restore = GetParam() == "load" || GetParam() == "restore";
  EXPECT_EQ(ended, on_restore ? 0 : -SIGKILL) << first->Errors();
  if (on_restore) {
    auto second = node.Train(Args(kRun + std::string("40 --kill-at 20:") + GetParam()));
    EXPECT_EQ(second->Wait(), -SIGKILL) << second->Errors();
  }
  auto last = node.Train(Args(kRun + std::string("40")));
  EXPECT_GE(NumberField(Restored(*last), "step"), first->Last("CAPTURED"));
  EXPECT_EQ(last->Wait(), 0) << last->Errors();
  EXPECT_EQ(last->lines().back(), node.ExpectedDigest(Args("--steps 40")));
  EXPECT_EQ(node.StopAgent(), 0);
  ExpectNothingLeftBehind(node);
}

INSTANTIATE_TEST_SUITE_P(EveryPoint, TrainerKilledAt,
                         testing::Values("restore", "load", "save", "gate", "captured", "durable"));

}  // namespace
}  // namespace ckptd::harness
