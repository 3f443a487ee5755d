// What is captured and what is dropped, of the reports of all ranks.
#include "daemon/job/grants.h"

#include <vector>

#include "daemon/format/snapshot_ref.h"
#include "daemon/job/job_test_util.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

v1::RankReport Facts(const std::vector<StepId>& sealed, StepId fill, StepId pos) {
  v1::RankReport report;
  for (const StepId step : sealed) SetRef({1, step}, report.add_sealed());
  report.set_fill(fill);
  report.set_pos(pos);
  return report;
}

TEST(Grants, CapturedWhenEveryRankHasSealed) {
  Grants grants;
  grants.Reset(1, {});
  const v1::RankReport a = Facts({10}, 0, 10);
  const v1::RankReport filling = Facts({}, 10, 10);
  EXPECT_FALSE(grants.Update({&a, &filling}, {}));
  const v1::RankReport sealed = Facts({10}, 0, 10);
  EXPECT_TRUE(grants.Update({&a, &sealed}, {}));
  EXPECT_EQ(grants.watermark(), (SnapshotId{1, 10}));
  EXPECT_EQ(grants.floor(), 11u);
}

TEST(Grants, DroppedWhenARankPassedWithoutIt) {
  Grants grants;
  grants.Reset(1, {});
  const v1::RankReport a = Facts({10}, 0, 10);
  const v1::RankReport before = Facts({}, 0, 9);
  EXPECT_FALSE(grants.Update({&a, &before}, {}));
  const v1::RankReport passed = Facts({}, 0, 12);
  EXPECT_TRUE(grants.Update({&a, &passed}, {}));
  EXPECT_EQ(grants.floor(), 13u);
  const v1::RankReport again = Facts({14}, 0, 14);
  const v1::RankReport missed = Facts({}, 0, 14);
  EXPECT_TRUE(grants.Update({&again, &missed}, {}));
  EXPECT_EQ(grants.floor(), 16u) << "the lead doubles";
}

// Ranks have different numbers of free slots: who has one more captures one step more, and who has none drops it.
TEST(Grants, ADroppedStepDoesNotEndAnOlderOneThatAllMayStillHave) {
  Grants grants;
  grants.Reset(1, {});
  const v1::RankReport fast = Facts({10, 12}, 0, 12);
  const v1::RankReport without_slot = Facts({10}, 0, 12);
  const v1::RankReport slow = Facts({}, 10, 11);
  EXPECT_TRUE(grants.Update({&fast, &without_slot, &slow}, {}));
  EXPECT_EQ(grants.floor(), 10u);
  const v1::RankReport captured = Facts({10}, 0, 11);
  EXPECT_TRUE(grants.Update({&fast, &without_slot, &captured}, {}));
  EXPECT_EQ(grants.watermark(), (SnapshotId{1, 10}));
  EXPECT_EQ(grants.floor(), 13u) << "then it counts";
}

// Of two that cannot be captured any more and one that can, the older one makes room at once.
TEST(Grants, DroppedStepsBelowOneThatAllMayStillHaveEnd) {
  Grants grants;
  grants.Reset(1, {});
  const v1::RankReport a = Facts({10, 12}, 0, 12);
  const v1::RankReport b = Facts({}, 12, 12);
  EXPECT_TRUE(grants.Update({&a, &b}, {}));
  EXPECT_EQ(grants.floor(), 12u);
}

// Rescued steps are above every pos (proto/local/rescue.h), and come one after the other.
TEST(Grants, StepsThatWereRescuedAreCapturedOnceEveryRankHasThem) {
  Grants grants;
  grants.Reset(1, {});
  v1::RankReport rescued = Facts({5, 7}, 0, 5);
  rescued.set_gone(true);
  const v1::RankReport lives = Facts({5}, 0, 5);
  EXPECT_TRUE(grants.Update({&rescued, &lives}, {}));
  EXPECT_EQ(grants.watermark(), (SnapshotId{1, 5}));
  EXPECT_EQ(grants.floor(), 6u) << "the other one may still have its 7";
  EXPECT_TRUE(grants.Update({&rescued, &rescued}, {}));
  EXPECT_EQ(grants.watermark(), (SnapshotId{1, 7}));
}

TEST(Grants, ARescuedStepThatAnotherGoneRankHasNotIsDropped) {
  Grants grants;
  grants.Reset(1, {});
  v1::RankReport one = Facts({5, 7}, 0, 5);
  v1::RankReport other = Facts({5, 8}, 0, 5);
  one.set_gone(true);
  other.set_gone(true);
  EXPECT_TRUE(grants.Update({&one, &other}, {}));
  EXPECT_EQ(grants.watermark(), (SnapshotId{1, 5}));
  EXPECT_GT(grants.floor(), 8u);
}

// Its pos will never tell: the process died before it had a bell, or before the step.
TEST(Grants, ARankThatIsGonePassesEveryStepThatItHasNot) {
  Grants grants;
  grants.Reset(1, {});
  v1::RankReport gone = Facts({5}, 0, 0);
  gone.set_gone(true);
  const v1::RankReport same = Facts({5}, 0, 5);
  EXPECT_TRUE(grants.Update({&same, &gone}, {}));
  EXPECT_EQ(grants.watermark(), (SnapshotId{1, 5})) << "it had sealed it: that is captured";
  const v1::RankReport filling = Facts({5}, 10, 5);  // its word is seen before its pos
  EXPECT_TRUE(grants.Update({&filling, &gone}, {}));
  EXPECT_EQ(grants.floor(), 11u);
  const v1::RankReport sealed = Facts({5, 20}, 0, 20);
  EXPECT_TRUE(grants.Update({&sealed, &gone}, {}));
  EXPECT_EQ(grants.floor(), 22u);
  EXPECT_EQ(grants.watermark(), (SnapshotId{1, 5}));
}

TEST(Grants, ARankThatIsGoneHoldsWhatItFills) {
  Grants grants;
  grants.Reset(1, {});
  const v1::RankReport sealed = Facts({10}, 0, 10);
  v1::RankReport gone = Facts({}, 10, 10);
  gone.set_gone(true);
  EXPECT_FALSE(grants.Update({&sealed, &gone}, {}));
}

TEST(Grants, ARestartedCoordinatorWaitsForEveryRank) {
  Grants grants;
  grants.Reset(1, {});
  const v1::RankReport a = Facts({}, 20, 20);
  const v1::RankReport b = Facts({10}, 0, 20);  // 10 was captured; the third rank, silent, holds it as W
  EXPECT_FALSE(grants.Update({&a, &b, nullptr}, {}));
}

}  // namespace
}  // namespace ckptd::job
