#include "daemon/job/flush_plan.h"

#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

// Two ranks of attempt 2.
class FlushPlanTest : public testing::Test {
 protected:
  FlushPlanTest() {
    plan_.Reset(2, {});
    for (v1::RankReport& rank : ranks_) rank.set_rank(static_cast<uint32_t>(&rank - ranks_));
  }

  static void Add(StepId step, v1::SnapshotRef* ref) {
    ref->set_attempt(2);
    ref->set_step(step);
  }
  void Capture(StepId step) {
    for (v1::RankReport& rank : ranks_) Add(step, rank.add_sealed());
    watermark_ = {2, step};
  }
  void Lose(v1::RankReport& rank) { rank.clear_sealed(); }

  bool Update(FlushPolicy policy) { return plan_.Update(policy, {&ranks_[0], &ranks_[1]}, watermark_, durable_); }

  static constexpr FlushPolicy kNewest{1, true};
  FlushPlan plan_;
  v1::RankReport ranks_[2];
  SnapshotId watermark_;
  SnapshotId durable_;
};

TEST_F(FlushPlanTest, WithoutAPolicyNothingIsSelected) {
  Capture(10);
  EXPECT_FALSE(FlushPolicy().selects());
  EXPECT_FALSE(Update(FlushPolicy()));
}

TEST_F(FlushPlanTest, TheParentComesFirst) {
  plan_.Reset(2, {1, 70});
  EXPECT_EQ(plan_.target(), (SnapshotId{1, 70}));
}

TEST_F(FlushPlanTest, EveryThirdCapture) {
  std::vector<StepId> flushed;
  for (StepId step = 10; step <= 90; step += 10) {
    Capture(step);
    if (Update({3, false})) flushed.push_back(plan_.target().step);
  }
  EXPECT_EQ(flushed, (std::vector<StepId>{30, 60, 90}));
}

TEST_F(FlushPlanTest, ARepeatedReportCountsOnce) {
  Capture(10);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Update({3, false}));
}

TEST_F(FlushPlanTest, OnlyTheNewestWaitsForTheStorage) {
  Capture(10);
  EXPECT_TRUE(Update(kNewest));
  Capture(20);
  EXPECT_FALSE(Update(kNewest)) << "10 is being written";
  Capture(30);
  EXPECT_FALSE(Update(kNewest));
  durable_ = {2, 10};
  EXPECT_TRUE(Update(kNewest));
  EXPECT_EQ(plan_.target().step, 30u);
}

TEST_F(FlushPlanTest, WhatOneRankHasNoMoreIsNotWaitedFor) {
  Capture(10);
  EXPECT_TRUE(Update(kNewest));
  Lose(ranks_[1]);
  Capture(20);
  EXPECT_TRUE(Update(kNewest));
  EXPECT_EQ(plan_.target().step, 20u);
}

TEST_F(FlushPlanTest, WhatIsNotCommittedIsNotWaitedFor) {
  Capture(10);
  EXPECT_TRUE(Update(kNewest));
  plan_.NotCommitted({2, 5});
  Capture(20);
  EXPECT_FALSE(Update(kNewest)) << "5 is not what is waited for";
  plan_.NotCommitted({2, 10});
  EXPECT_TRUE(Update(kNewest));
  EXPECT_EQ(plan_.target().step, 20u);
  Capture(30);
  EXPECT_FALSE(Update(kNewest)) << "20 is being written";
}

TEST_F(FlushPlanTest, WhatOneRankHasWrittenIsWaitedFor) {
  Capture(10);
  EXPECT_TRUE(Update(kNewest));
  Lose(ranks_[1]);
  Add(10, ranks_[1].add_persisted());
  Capture(20);
  EXPECT_FALSE(Update(kNewest)) << "rank 0 still writes it";
}

TEST_F(FlushPlanTest, ARankThatHasNotReportedIsWaitedFor) {
  Capture(10);
  EXPECT_TRUE(Update(kNewest));
  Capture(20);
  EXPECT_FALSE(plan_.Update(kNewest, {&ranks_[0], nullptr}, watermark_, durable_));
}

TEST_F(FlushPlanTest, AWantedStepDoesNotWaitForItsTurn) {
  Capture(10);
  EXPECT_FALSE(Update({100, false}));
  ranks_[1].set_flush_wanted(15);
  EXPECT_FALSE(Update({100, false})) << "not captured yet";
  Capture(20);
  EXPECT_TRUE(Update({100, false})) << "15 or newer";
  EXPECT_EQ(plan_.target().step, 20u);
  Capture(30);
  EXPECT_FALSE(Update({100, false})) << "20 is on its way";
  durable_ = {2, 20};
  EXPECT_FALSE(Update({100, false}));
}

TEST_F(FlushPlanTest, AWantedStepThatARankLostIsReplacedByANewerOne) {
  ranks_[0].set_flush_wanted(10);
  Capture(10);
  EXPECT_TRUE(Update({100, false}));
  Lose(ranks_[0]);
  Capture(20);
  EXPECT_TRUE(Update({100, false}));
}

}  // namespace
}  // namespace ckptd::job
