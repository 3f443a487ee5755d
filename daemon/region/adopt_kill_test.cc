// What a starting agent makes of a predecessor's directory after every kill.
//
// The work runs in a child that dies at a failpoint. gtest's threadsafe death tests start the child by exec, because
// failpoints are read from the environment once in a process; so the directory travels in the environment too.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "daemon/os/thread.h"
#include "daemon/region/adopt.h"
#include "daemon/region/region_test_util.h"
#include "daemon/region/verify.h"

namespace ckptd::region {
namespace {

namespace fs = std::filesystem;
constexpr const char* kDirVariable = "CKPTD_REGION_TEST_DIR";

class KillTest : public ::testing::Test {
 protected:
  KillTest() {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    if (getenv(kDirVariable) == nullptr) {
      own_.emplace();
      setenv(kDirVariable, own_->region().c_str(), 1);
    }
    region_dir_ = getenv(kDirVariable);
  }
  ~KillTest() override {
    if (own_) unsetenv(kDirVariable);
  }

  [[nodiscard]] std::string RankDir() const { return region_dir_ + "/gpt/rank-00000"; }

  std::optional<TempDir> own_;
  std::string region_dir_;
};

class KilledSealing : public KillTest, public ::testing::WithParamInterface<const char*> {};

void SealTwo(const std::string& dir, const std::string& point) {
  setenv("CKPTD_FAILPOINTS", (point + "=kill@2").c_str(), 1);
  auto region = OpenRegion(dir);
  LayoutSet& set = SealOne(*region);
  set.SetFlags(0, kSlotPersisted);
  Fill(OpenTestRank(*region), set, **Bell::Create(set.head()), 1, 101);
}

TEST_P(KilledSealing, SealedStaysSealedTornIsNeverShown) {
  const std::string point = GetParam();
  EXPECT_EXIT(SealTwo(region_dir_, point), ::testing::KilledBySignal(SIGKILL), "");
  auto region = OpenRegion(region_dir_);
  ASSERT_EQ(region->adopted().jobs.size(), 1u);
  EXPECT_EQ(region->adopted().jobs[0].seen, 1u);
  EXPECT_EQ(SlotIn(*region, 0).state, SlotStateCode::kSealed);
  EXPECT_EQ(SlotIn(*region, 0).record->id(), (SnapshotId{1, 100}));
  EXPECT_EQ(SlotIn(*region, 0).flags, kSlotPersisted);
  EXPECT_EQ(LostIn(*region), 0u) << "a kill destroys nothing";
  const SlotSnapshot& second = SlotIn(*region, 1);
  if (point == "region.seal.after") {
    EXPECT_EQ(second.state, SlotStateCode::kSealed);
    EXPECT_EQ(second.record->id(), (SnapshotId{1, 101}));
    EXPECT_EQ(second.flags, 0u);
  } else if (point == "region.grant.opened") {
    EXPECT_EQ(second.state, SlotStateCode::kFree);
  } else {
    EXPECT_EQ(second.state, SlotStateCode::kFilling);
    EXPECT_EQ(second.owner, (SlotOwner{99, 1, 42, 5}));
    EXPECT_EQ(second.record, nullptr);
  }
  RankRegion& rank = OpenTestRank(*region);
  EXPECT_EQ(rank.FindLayout(1)->grant().word, 0u);
  EXPECT_GT(rank.NextEpoch(), second.epoch);
  Progress progress(kTestSlotBytes);
  EXPECT_TRUE(VerifySlot(*rank.FindLayout(1)->FileOf(0), *SlotIn(*region, 0).record, progress).ok());
}

INSTANTIATE_TEST_SUITE_P(Points, KilledSealing,
                         ::testing::Values("region.grant.opened", "region.grant.filling", "region.record.before",
                                           "region.record.flags", "region.record.middle", "region.record.after",
                                           "region.seal.after"));

class KilledPreparing : public KillTest, public ::testing::WithParamInterface<const char*> {};

void PrepareTwo(const std::string& dir, const std::string& point) {
  setenv("CKPTD_FAILPOINTS", (point + "=kill@" + (point == "region.reserve" ? "3" : "2")).c_str(), 1);
  auto region = OpenRegion(dir);
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& set = AddLayout(rank);
  auto bell = *Bell::Create(set.head());
  Fill(rank, set, *bell, 0, 100);
  AddLayout(rank, TestSpec(256 * kKiB, 8));
}

TEST_P(KilledPreparing, OldLayoutWholeNewOneWholeOrGone) {
  const std::string point = GetParam();
  EXPECT_EXIT(PrepareTwo(region_dir_, point), ::testing::KilledBySignal(SIGKILL), "");
  auto region = OpenRegion(region_dir_);
  EXPECT_EQ(SlotIn(*region, 0).record->id(), (SnapshotId{1, 100}));
  const auto& layouts = region->adopted().jobs[0].ranks[0].layouts;
  const bool linked = point == "region.ctl.after_link";
  ASSERT_EQ(layouts.size(), linked ? 2u : 1u);
  EXPECT_EQ(LostIn(*region), 0u);
  EXPECT_EQ(NamesIn(RankDir()).size(), linked ? 6u : 3u) << "no debris";
  if (linked) {
    EXPECT_EQ(layouts[1].slots[0].state, SlotStateCode::kFree);
  }
  AddLayout(OpenTestRank(*region), TestSpec(256 * kKiB, 9));
}

INSTANTIATE_TEST_SUITE_P(Points, KilledPreparing,
                         ::testing::Values("region.reserve", "region.ctl.half", "region.ctl.before_link",
                                           "region.ctl.after_link"));

void RemoveOne(const std::string& dir) {
  setenv("CKPTD_FAILPOINTS", "region.layout.unlinked=kill", 1);
  auto region = OpenRegion(dir);
  RankRegion& rank = OpenTestRank(*region);
  AddLayout(rank);
  (void)rank.RemoveLayout(1);
}

TEST_F(KillTest, RemovingALayout) {
  EXPECT_EXIT(RemoveOne(region_dir_), ::testing::KilledBySignal(SIGKILL), "");
  auto region = OpenRegion(region_dir_);
  EXPECT_TRUE(region->adopted().jobs[0].ranks.empty());
  EXPECT_EQ(LostIn(*region), 0u);
  EXPECT_EQ(NamesIn(region_dir_ + "/gpt"), std::set<std::string>{"job"});
}

// One slot is not free yet, and neither has a name.
void FreeOne(const std::string& dir) {
  setenv("CKPTD_FAILPOINTS", "region.slot.free=kill@2", 1);
  ThreadPool freeing("free", 1, 16);
  RegionOptions options = TestOptions(dir);
  options.freeing = &freeing;
  auto region = *Region::Open(PosixFiles(), SystemClock(), options);
  RankRegion& rank = OpenTestRank(*region);
  AddLayout(rank);
  (void)rank.RemoveLayout(1);
  freeing.Stop();
}

TEST_F(KillTest, FreeingMemory) {
  EXPECT_EXIT(FreeOne(region_dir_), ::testing::KilledBySignal(SIGKILL), "");
  auto region = OpenRegion(region_dir_);
  EXPECT_TRUE(region->adopted().jobs[0].ranks.empty());
  EXPECT_EQ(LostIn(*region), 0u);
  EXPECT_EQ(NamesIn(region_dir_ + "/gpt"), std::set<std::string>{"job"});
  EXPECT_EQ(region->quota().used(), 0u);
}

void ReplaceOne(const std::string& dir) {
  setenv("CKPTD_FAILPOINTS", "region.replace.file_id=kill", 1);
  auto region = OpenRegion(dir);
  RankRegion& rank = OpenTestRank(*region);
  LayoutSet& set = AddLayout(rank);
  InlineExecutor executor;
  (void)set.RetireSlot(0);
  auto build = *set.StartReplace(0, executor, [](const absl::Status&) {});
  (void)set.FinishReplace(0, *build);
}

TEST_F(KillTest, ReplacingASlot) {
  EXPECT_EXIT(ReplaceOne(region_dir_), ::testing::KilledBySignal(SIGKILL), "");
  auto region = OpenRegion(region_dir_);
  EXPECT_EQ(SlotIn(*region, 0).state, SlotStateCode::kRetired);
  EXPECT_NE(SlotIn(*region, 0).file_id, 0u);
  EXPECT_EQ(LostIn(*region), 0u);
  EXPECT_EQ(NamesIn(RankDir()).size(), 3u) << "the old file is gone";
}

void MakeJob(const std::string& dir) {
  setenv("CKPTD_FAILPOINTS", "region.journal.before_link=kill", 1);
  auto region = OpenRegion(dir);
  (void)region->OpenJob("gpt", 1000);
}

TEST_F(KillTest, MakingAJob) {
  EXPECT_EXIT(MakeJob(region_dir_), ::testing::KilledBySignal(SIGKILL), "");
  auto region = OpenRegion(region_dir_);
  EXPECT_TRUE(region->adopted().jobs.empty());
  EXPECT_EQ(NamesIn(region_dir_), (std::set<std::string>{".id", ".lock"}));
}

void CutOneAndAdopt(const std::string& dir) {
  setenv("CKPTD_FAILPOINTS", "region.adopt.rank=kill", 1);
  std::string file;
  {
    auto region = OpenRegion(dir);
    file = SealOne(*region).FileOf(0)->path();
  }
  fs::resize_file(file, 4096);
  OpenRegion(dir);
}

TEST_F(KillTest, FindingASnapshotDestroyed) {
  EXPECT_EXIT(CutOneAndAdopt(region_dir_), ::testing::KilledBySignal(SIGKILL), "");
  EXPECT_EQ(NamesIn(RankDir()).size(), 2u) << "the cut file is gone, and with it what showed the loss";
  EXPECT_EQ(LostIn(*OpenRegion(region_dir_)), 1u);
}

}  // namespace
}  // namespace ckptd::region
