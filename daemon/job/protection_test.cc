// Which copies protect, of hand-made REPORTs.
#include "daemon/job/protection.h"

#include <memory>

#include "daemon/job/job_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Rank 0 at A, rank 1 at B; C is a spare. Two nodes have each snapshot.
class ProtectionTest : public testing::Test {
 protected:
  ProtectionTest() {
    claims_[0].set_agent("A");
    claims_[1].set_agent("B");
    protection_.Reset({}, {});
  }

  void Seals(const std::string& agent, Rank rank, const std::vector<SnapshotId>& ids) {
    v1::RankReport* report = Of(agent).add_ranks();
    report->set_rank(rank);
    for (const SnapshotId& id : ids) SetRef(id, report->add_sealed());
  }
  void Holds(const std::string& agent, Rank rank, const std::vector<SnapshotId>& ids) {
    v1::HeldCopies* held = Of(agent).add_copies();
    held->set_rank(rank);
    for (const SnapshotId& id : ids) SetRef(id, held->add_complete());
  }
  v1::Report& Of(const std::string& agent) {
    v1::Report& report = reports_[agent];
    report.set_agent(agent);
    return report;
  }
  // Step 10 is on both owners, each other's copy too.
  void BothHaveBoth() {
    Seals("A", 0, {{1, 10}});
    Seals("B", 1, {{1, 10}});
    Holds("A", 1, {{1, 10}});
    Holds("B", 0, {{1, 10}});
  }

  template <typename F>
  auto With(F&& look) {
    std::map<std::string, ReportPtr> reports;
    for (const auto& [agent, report] : reports_) reports[agent] = std::make_shared<v1::Report>(report);
    Holdings holdings{reports, claims_, copies_, [this](const std::string& agent) { return agent != lost_; }};
    holdings.knows = [this](const std::string& agent) { return agent != late_; };
    return look(holdings);
  }
  std::vector<Rank> LackingOf(const SnapshotId& id) {
    return With([&](const Holdings& holdings) { return Lacking(holdings, id, {}); });
  }
  bool Update(StepId watermark, bool hopeless = false, StepId durable = 0) {
    Protection::Facts facts{{}, {}, owners_reported_, true, hopeless};
    if (watermark != 0) facts.watermark = {1, watermark};
    if (durable != 0) facts.durable = {1, durable};
    return With([&](const Holdings& holdings) {
      for (const auto& [agent, report] : reports_) protection_.Heard(holdings, agent);
      return protection_.Update(holdings, facts, {});
    });
  }
  ProtectionMarks marks() const { return protection_.marks(); }

  std::map<std::string, v1::Report> reports_;
  std::map<Rank, v1::RankClaim> claims_;
  uint32_t copies_ = 2;
  std::string lost_;
  std::string late_;  // its REPORT is from before the loss
  bool owners_reported_ = true;
  Protection protection_;
};

TEST_F(ProtectionTest, EveryRankNeedsACopy) {
  Seals("A", 0, {{1, 10}});
  Seals("B", 1, {{1, 10}});
  Holds("B", 0, {{1, 10}});
  EXPECT_THAT(LackingOf({1, 10}), ElementsAre(1));
  Holds("C", 1, {{1, 10}});
  EXPECT_THAT(LackingOf({1, 10}), IsEmpty());
}

TEST_F(ProtectionTest, OnlyDistinctOtherAgentsCount) {
  BothHaveBoth();
  copies_ = 3;
  Holds("B", 0, {{1, 10}});  // said twice
  Holds("A", 0, {{1, 10}});  // its own
  EXPECT_THAT(LackingOf({1, 10}), ElementsAre(0, 1));
  Holds("C", 0, {{1, 10}});
  EXPECT_THAT(LackingOf({1, 10}), ElementsAre(1));
}

TEST_F(ProtectionTest, AnOwnerThatHasGivenItUpIsOneLess) {
  Seals("A", 0, {{1, 20}});
  Seals("B", 1, {{1, 10}});
  Holds("B", 0, {{1, 10}});
  Holds("A", 1, {{1, 10}});
  EXPECT_THAT(LackingOf({1, 10}), ElementsAre(0));
}

TEST_F(ProtectionTest, WhoIsLostDoesNotCount) {
  BothHaveBoth();
  lost_ = "B";
  EXPECT_THAT(LackingOf({1, 10}), ElementsAre(0, 1));
}

TEST_F(ProtectionTest, NothingIsProtectedBeforeItIsCaptured) {
  BothHaveBoth();
  Update(0);
  EXPECT_TRUE(marks().complete.none());
  EXPECT_TRUE(Update(10)) << "it is copied now";
  Update(10);
  EXPECT_EQ(marks().complete, (SnapshotId{1, 10}));
  EXPECT_TRUE(protection_.now());
}

TEST_F(ProtectionTest, OneIsFinishedBeforeTheNextIsChosen) {
  Seals("A", 0, {{1, 10}, {1, 20}});
  Seals("B", 1, {{1, 10}, {1, 20}});
  Holds("B", 0, {{1, 10}});
  Update(10);
  Update(20);
  EXPECT_EQ(marks().target, (SnapshotId{1, 10}));
  EXPECT_THAT(protection_.lacking(), ElementsAre(1));
  Holds("A", 1, {{1, 10}});
  Update(20);
  EXPECT_EQ(marks().complete, (SnapshotId{1, 10}));
  EXPECT_EQ(marks().target, (SnapshotId{1, 20}));
}

TEST_F(ProtectionTest, WhatIsDurableNeedNotBeFinished) {
  Update(10);
  Update(20, false, 10);
  EXPECT_EQ(marks().target, (SnapshotId{1, 20}));
}

TEST_F(ProtectionTest, ALostHolderIsToldAndWhatWasSaidStands) {
  BothHaveBoth();
  Update(10);
  Update(10);
  lost_ = "B";
  EXPECT_TRUE(Update(10));
  EXPECT_EQ(marks().complete, (SnapshotId{1, 10}));
  EXPECT_EQ(marks().given_up, (SnapshotId{1, 10}));
  EXPECT_FALSE(protection_.now());
}

// Nothing new is saved, and the copies are made again.
TEST_F(ProtectionTest, ACapturedStepThatWasGivenUpIsProtectedAnewAndMayBeLostAgain) {
  BothHaveBoth();
  Update(10);
  Update(10);
  for (const uint64_t turns : {1, 3}) {
    lost_ = "B";
    EXPECT_TRUE(Update(10));
    EXPECT_FALSE(protection_.now());
    EXPECT_FALSE(Update(10)) << "B is lost still";
    lost_ = "";
    EXPECT_FALSE(Update(10, true)) << "somebody has no holders";
    late_ = "B";
    EXPECT_FALSE(Update(10)) << "what B said it said before it was lost";
    late_ = "";
    EXPECT_TRUE(Update(10));
    EXPECT_TRUE(protection_.now());
    EXPECT_EQ(marks(), (ProtectionMarks{{1, 10}, {1, 10}, {1, 10}, turns}));
  }
  EXPECT_FALSE(Update(10)) << "nothing is news";
  EXPECT_TRUE(Update(20));
  EXPECT_EQ(marks().target, (SnapshotId{1, 20}));
  EXPECT_TRUE(protection_.now()) << "10 stays protected until 20 is";
}

// Owners may have freed it.
TEST_F(ProtectionTest, WhatIsNotCapturedLastIsNotMadeGood) {
  BothHaveBoth();
  Update(10);
  protection_.Raise({{}, {}, {1, 10}, 0});  // a holder has no room
  Update(20);
  EXPECT_TRUE(marks().complete.none());
  EXPECT_EQ(marks().target, (SnapshotId{1, 20}));
}

// A holder that had no room for the step has it after all.
TEST_F(ProtectionTest, WhatWasRefusedIsProtectedWhenItIsThereInTheEnd) {
  Seals("A", 0, {{1, 10}});
  Seals("B", 1, {{1, 10}});
  Update(10);
  protection_.Raise({{}, {}, {1, 10}, 0});
  Update(10);
  EXPECT_FALSE(protection_.now());
  Holds("A", 1, {{1, 10}});
  Holds("B", 0, {{1, 10}});
  EXPECT_TRUE(Update(10));
  EXPECT_TRUE(protection_.now());
  EXPECT_EQ(marks().complete, (SnapshotId{1, 10}));
}

TEST_F(ProtectionTest, WithoutHoldersTheTargetFollowsW) {
  Update(10);
  Update(20, true);
  EXPECT_EQ(marks().target, (SnapshotId{1, 20})) << "or training would find no slot";
}

TEST_F(ProtectionTest, ARestartedCoordinatorHearsAllOwnersFirst) {
  owners_reported_ = false;
  BothHaveBoth();
  protection_.Raise({{}, {1, 10}, {}, 0});
  Update(20);
  EXPECT_EQ(marks().target, (SnapshotId{1, 10}));
  EXPECT_TRUE(marks().complete.none());
}

TEST_F(ProtectionTest, WhatTheLineageStillHasIsProtectedFromTheStart) {
  BothHaveBoth();
  const auto still = [&](const v1::DecisionRecord& decision) {
    return With([&](const Holdings& holdings) { return StillProtected(holdings, decision, {}); });
  };
  EXPECT_EQ(still(Decision(2, {{1, 20}}, 2)), (SnapshotId{1, 10}));
  EXPECT_TRUE(still(Decision(2, {{1, 5}}, 2)).none()) << "it was rolled back";
  EXPECT_TRUE(still(Decision(2, {}, 2)).none());
}

TEST_F(ProtectionTest, SourcesAreOthersThatHaveItTheNearestFirst) {
  Seals("A", 0, {{1, 10}});  // has it itself
  Holds("C", 1, {{1, 10}});
  Holds("A", 1, {{1, 10}});
  Holds("B", 1, {{1, 10}});
  Seals("D", 1, {{1, 10}});
  Holds("E", 1, {{1, 9}});
  const auto sources = With([](const Holdings& holdings) { return SourcesOf(holdings, {1, 10}); });
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(sources[0].rank(), 1u);
  EXPECT_THAT(sources[0].agents(), ElementsAre("B", "C", "D", "A"));
}

}  // namespace
}  // namespace ckptd::job
