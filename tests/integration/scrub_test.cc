// What lies still goes bad, in memory and on the disk: the agent finds it by itself, mends what it can, and tells the
// rest; and it never finds anything where nothing is bad.
#include <filesystem>
#include <fstream>

#include "tests/integration/ctl_fixture.h"
#include "tests/integration/loop_disk.h"
#include "tests/integration/tmpfs.h"

namespace ckptd::harness {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kFromStorage = 5;  // ckpt_restored::source

class ScrubTest : public CkptctlTest {
 protected:
  void Restart(const std::string& every = "\"200ms\"", const std::string& storage = "") {
    node_.reset();
    NodeOptions options = Settings();
    options.storage = storage;
    options.settings["scrub.region_every"] = every;
    options.settings["scrub.storage_every"] = every;
    node_ = std::make_unique<Node>(options);
    ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  }

  // Until the agent's log holds `text`.
  [[nodiscard]] bool Logged(const std::string& text) const {
    for (int i = 0; i < 300; ++i) {
      if (node_->AgentLog().find(text) != std::string::npos) return true;
      usleep(50'000);
    }
    return false;
  }
  [[nodiscard]] std::string NewestSlot() {
    std::vector<std::string> slots = FilesWith(node_->region(), "/slot-");
    EXPECT_EQ(slots.size(), 2u);
    const std::string image = Content(Image(StepDir("gpt", 20)));
    for (const std::string& slot : slots) {
      if (Content(node_->region() + "/" + slot).substr(0, image.size()) == image) return node_->region() + "/" + slot;
    }
    ADD_FAILURE() << "no slot holds step 20";
    return "";
  }
};

TEST_F(ScrubTest, ASlotThatWentBadIsNotRestoredFrom) {
  ASSERT_NO_FATAL_FAILURE(Restart());
  ASSERT_NO_FATAL_FAILURE(Train("gpt"));
  FlipByte(NewestSlot(), 70000);
  Said told = Await(1);
  EXPECT_TRUE(told.Has("its bytes went bad in memory")) << told;
  EXPECT_TRUE(Logged("scrub.slot_damaged"));
  auto trainer = node_->Train(Args("--job gpt --steps 22 --every 5"));
  const std::string restored = Restored(*trainer);
  EXPECT_EQ(NumberField(restored, "source"), kFromStorage) << restored;
  EXPECT_EQ(NumberField(restored, "step"), 20u) << restored;
  EXPECT_EQ(trainer->Wait(), 0) << trainer->Errors();
  EXPECT_EQ(trainer->lines().back(), node_->ExpectedDigest(Args("--steps 22")));
}

// Each in the newest step's image, which memory still holds.
struct Damage {
  const char* name;
  void (*make)(const std::string& image, const std::string& older);
};
void Flip(const std::string& image, const std::string&) { FlipByte(image, 70000); }
void FlipHeader(const std::string& image, const std::string&) { FlipByte(image, 20); }
void Truncate(const std::string& image, const std::string&) { fs::resize_file(image, fs::file_size(image) - 1); }
void Lose(const std::string& image, const std::string&) { fs::remove(image); }
void Replace(const std::string& image, const std::string& older) {
  fs::copy_file(older, image, fs::copy_options::overwrite_existing);
}
constexpr Damage kDamages[] = {{"ABit", Flip},
                               {"ABitOfTheHeader", FlipHeader},
                               {"Truncated", Truncate},
                               {"Lost", Lose},
                               {"ThatOfAnotherStep", Replace}};

class ScrubImage : public ScrubTest, public testing::WithParamInterface<Damage> {};

TEST_P(ScrubImage, IsPutBackFromMemory) {
  ASSERT_NO_FATAL_FAILURE(Restart());
  ASSERT_NO_FATAL_FAILURE(Train("gpt"));
  const std::string image = Image(StepDir("gpt", 20));
  const std::string was = Content(image);
  GetParam().make(image, Image(StepDir("gpt", older_)));
  ASSERT_NE(Content(image), was);
  ASSERT_TRUE(Logged("scrub.mended")) << node_->AgentLog();
  EXPECT_TRUE(Content(image) == was);
  Said good = Run("verify gpt@20");
  EXPECT_EQ(good.code, 0) << good;
  EXPECT_EQ(Await(0).code, 0);
  EXPECT_EQ(FilesWith(node_->storage(), ".tmp-"), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Each, ScrubImage, testing::ValuesIn(kDamages),
                         [](const auto& each) { return each.param.name; });

TEST_F(ScrubTest, WhatCannotBePutBackIsAProblemUntilItIsGone) {
  ASSERT_NO_FATAL_FAILURE(Restart());
  auto trainer = node_->Train(Args("--job gpt --steps 40 --every 5 --step-ms 40"));
  ASSERT_EQ(trainer->Wait(), 0) << trainer->Errors() << node_->AgentLog();
  for (int i = 0; i < 200 && WholeSteps(*node_, "gpt").size() > 4; ++i) usleep(50'000);
  const auto steps = WholeSteps(*node_, "gpt");
  ASSERT_EQ(steps.size(), 4u);  // memory holds two of them at most
  const uint64_t oldest = steps.front().first;
  FlipByte(Image(StepDir("gpt", oldest)), 70000);
  Said told = Await(1);
  EXPECT_TRUE(told.Has("step " + std::to_string(oldest) + " is damaged on storage: rank-00000-of-00001.safetensors"))
      << told;
  EXPECT_EQ(node_->AgentLog().find("scrub.mended"), std::string::npos);
  FlipByte(Image(StepDir("gpt", oldest)), 70000);
  EXPECT_EQ(Await(0).code, 0) << "somebody mended it";
  FlipByte(Image(StepDir("gpt", oldest)), 70000);
  EXPECT_EQ(Await(1).code, 1);
  const std::string target = "gpt@" + std::to_string(oldest);
  EXPECT_EQ(Run("verify " + target).code, 1);
  Said removed = Run("rm " + target);
  EXPECT_EQ(removed.code, 0) << removed;
  Said well = Await(0);
  EXPECT_EQ(well.code, 0) << well;
}

TEST_F(ScrubTest, ASidecarThatWentBadIsTold) {
  ASSERT_NO_FATAL_FAILURE(Restart());
  ASSERT_NO_FATAL_FAILURE(Train("gpt"));
  FlipByte(StepDir("gpt", 20) + "/rank-00000-of-00001.json", 30);
  Said told = Await(1);
  EXPECT_TRUE(told.Has("rank-00000-of-00001.json")) << told;
}

// The first in the order of names is the one that storage cannot list.
TEST_F(ScrubTest, AJobThatCannotBeListedKeepsNobodyElseFromBeingRead) {
  ASSERT_NO_FATAL_FAILURE(Restart());
  ASSERT_NO_FATAL_FAILURE(Train("bad"));
  ASSERT_NO_FATAL_FAILURE(Train("gpt"));
  FlipByte(StepDir("bad", 20) + "/rank-00000-of-00001.json", 30);  // a record: nobody puts it back
  ASSERT_EQ(Await(1).code, 1);
  std::ofstream(node_->storage() + "/bad/attempts/a0001.decided.json", std::ios::trunc) << "{";
  ASSERT_TRUE(Logged("scrub.not_listed")) << node_->AgentLog();
  Flip(Image(StepDir("gpt", 20)), "");
  ASSERT_TRUE(Logged("scrub.mended")) << node_->AgentLog();
  Said told = Run("status");
  EXPECT_TRUE(told.Has("job bad: step 20 is damaged on storage")) << told;
  usleep(1'000'000);
  const std::string log = node_->AgentLog();
  EXPECT_EQ(log.find("scrub.not_listed"), log.rfind("scrub.not_listed")) << "told once: " << log;
}

// The page cache still has the right bytes: only who reads past it can know.
TEST_F(ScrubTest, ADiskThatWentBadUnderAHotCacheIsFound) {
  LoopDisk disk(64);
  if (!disk.mounted()) GTEST_SKIP() << disk.skipped();
  ASSERT_NO_FATAL_FAILURE(Restart("\"200ms\"", disk.path() + "/storage"));
  ASSERT_NO_FATAL_FAILURE(Train("gpt"));
  const std::string image = Image(StepDir("gpt", 20));
  const std::string was = Content(image);  // and it is in the cache
  const std::string blocks = Content(disk.image());
  const size_t at = blocks.find(was.substr(65536, 4096));
  ASSERT_NE(at, blocks.npos);
  FlipByte(disk.image(), at + 5);
  EXPECT_TRUE(Content(image) == was) << "the cache is not hot: the test shows nothing";
  ASSERT_TRUE(Logged("scrub.mended")) << node_->AgentLog();
  EXPECT_EQ(Run("verify gpt@20").code, 0);
}

TEST_F(ScrubTest, WhileTrainingGoesOnNothingIsFoundThatIsNotBad) {
  ASSERT_NO_FATAL_FAILURE(Restart("\"1ms\""));
  auto trainer = node_->Train(Args("--job gpt --bytes 8000000 --steps 600 --every 3 --step-ms 5"));
  ASSERT_EQ(trainer->Wait(), 0) << trainer->Errors() << node_->AgentLog();
  const std::string log = node_->AgentLog();
  EXPECT_EQ(log.find("scrub."), log.npos) << log;
  Said well = Run("status");
  EXPECT_EQ(well.code, 0) << well;
}

// Memory for one of them: slots of 18 MiB, two of each, and one of the first job's takes 18 s to be read.
TEST_F(ScrubTest, WhatIsReadIsLetGoForAnotherJob) {
  Tmpfs tmpfs("48m");
  if (!tmpfs.mounted()) GTEST_SKIP() << kNoMount;
  node_.reset();
  NodeOptions options = Settings();
  options.region = tmpfs.path();
  options.settings["scrub.region_every"] = "\"200ms\"";
  options.settings["scrub.storage_every"] = "\"1h\"";
  options.settings["scrub.rate"] = "\"1 MiB\"";
  node_ = std::make_unique<Node>(options);
  ASSERT_TRUE(node_->StartAgent()) << node_->AgentLog();
  auto ended = node_->Train(Args("--job ended --bytes 18000000 --steps 20 --every 10 --step-ms 100"));
  ASSERT_EQ(ended->Wait(), 0) << ended->Errors() << node_->AgentLog();
  usleep(1'500'000);  // it is being read by now
  auto next = node_->Train(Args("--job next --bytes 18000000 --steps 100000 --every 5 --step-ms 20"));
  EXPECT_TRUE(next->WaitFor("CAPTURED", Millis(10'000))) << next->Errors() << node_->AgentLog();
  for (const std::string& line : next->lines()) EXPECT_EQ(line.find("REGION_FULL"), line.npos) << line;
  EXPECT_NE(node_->AgentLog().find("region.reclaim"), std::string::npos) << node_->AgentLog();
  next->Kill();
}

TEST_F(ScrubTest, NothingIsReadBeforeItsTime) {
  ASSERT_NO_FATAL_FAILURE(Restart("\"1h\""));
  ASSERT_NO_FATAL_FAILURE(Train("gpt"));
  FlipByte(NewestSlot(), 70000);
  usleep(1'500'000);
  EXPECT_EQ(Run("status").code, 0);
}

}  // namespace
}  // namespace ckptd::harness
