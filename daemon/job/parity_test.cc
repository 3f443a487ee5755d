// Which parity protects, and what it brings back, of hand-made REPORTs.
#include <memory>
#include <random>

#include "daemon/erasure/rotation.h"
#include "daemon/job/job_test_util.h"
#include "daemon/job/parity_coverage.h"
#include "daemon/job/parity_stock.h"
#include "daemon/job/protection.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

const SnapshotId kStepTen{1, 10};

// Agent i has rank i. `parity` of so many; step 10 is sealed everywhere, and all parity of it is made.
class ParityTest : public testing::Test {
 protected:
  void Set(uint32_t ranks, uint32_t parity) {
    parity_ = parity;
    std::vector<std::string> agents;
    std::map<Rank, std::string> agent_of;
    for (Rank rank = 0; rank < ranks; ++rank) {
      agents.push_back(Agent(rank));
      agent_of[rank] = Agent(rank);
      claims_[rank].set_agent(Agent(rank));
    }
    groups_ = protect::RankGroupsOf({agents}, agent_of);
    const erasure::Shape shape = *protect::ShapeOf(ranks, parity);
    for (Rank rank = 0; rank < ranks; ++rank) {
      v1::RankReport* report = reports_[Agent(rank)].add_ranks();
      report->set_rank(rank);
      SetRef(kStepTen, report->add_sealed());
    }
    for (uint32_t stripe = 0; stripe < ranks; ++stripe) {
      for (uint32_t row = 0; row < parity; ++row) {
        v1::HeldParity* held = reports_[Agent(erasure::ParityHolder(shape, stripe, row))].add_parity();
        held->mutable_ranks()->Assign(groups_[0].ranks.begin(), groups_[0].ranks.end());
        held->set_parity(parity);
        held->set_stripe(stripe);
        held->set_row(row);
        SetRef(kStepTen, held->add_complete());
      }
    }
  }
  static std::string Agent(Rank rank) { return std::string(1, static_cast<char>('A' + rank)); }

  template <typename F>
  auto With(F&& look) {
    std::map<std::string, ReportPtr> reports;
    for (const auto& [agent, report] : reports_) reports[agent] = std::make_shared<v1::Report>(report);
    return look(Holdings{reports, claims_, 0, [](const std::string&) { return true; }, parity_, &groups_});
  }
  std::vector<Rank> LackingOf(const SnapshotId& id) {
    return With([&](const Holdings& holdings) { return Lacking(holdings, id, {}); });
  }
  std::vector<Rank> RebuildableRanks() {
    return With([&](const Holdings& holdings) {
      std::vector<Rank> ranks;
      for (const auto& [rank, ids] : Rebuildable(WhoHasWhat(holdings.reports, holdings.counts))) ranks.push_back(rank);
      return ranks;
    });
  }
  std::vector<v1::RankSources> Sources() {
    return With([&](const Holdings& holdings) { return SourcesOf(holdings, kStepTen); });
  }

  uint32_t parity_ = 0;
  std::vector<protect::RankGroup> groups_;
  std::map<Rank, v1::RankClaim> claims_;
  std::map<std::string, v1::Report> reports_;
};

TEST_F(ParityTest, AStepIsProtectedWhenAllParityOfItIsMade) {
  Set(4, 1);
  EXPECT_THAT(LackingOf(kStepTen), IsEmpty());
  EXPECT_THAT(LackingOf({1, 20}), ElementsAre(0, 1, 2, 3));
  reports_["C"].mutable_parity(0)->clear_complete();
  EXPECT_THAT(LackingOf(kStepTen), ElementsAre(0, 1, 2, 3)) << "one parity of the group";
}

TEST_F(ParityTest, ParityWithoutItsImagesProtectsNothing) {
  Set(4, 1);
  reports_["C"].mutable_ranks(0)->clear_sealed();
  EXPECT_THAT(LackingOf(kStepTen), ElementsAre(0, 1, 2, 3));
}

TEST_F(ParityTest, ParityOfAnotherGroupOrAtAnotherPlaceProtectsNothing) {
  Set(4, 1);
  const v1::Report before = reports_["C"];
  reports_["C"].mutable_parity(0)->set_ranks(0, 7);
  EXPECT_THAT(LackingOf(kStepTen), ElementsAre(0, 1, 2, 3)) << "made of other ranks";
  reports_["C"] = before;
  *reports_["D"].add_parity() = before.parity(0);
  reports_["C"].clear_parity();
  EXPECT_THAT(LackingOf(kStepTen), ElementsAre(0, 1, 2, 3)) << "one loss would take two places of the stripe";
}

TEST_F(ParityTest, EveryLossThatTheArithmeticAllowsCanBeRebuiltAndNoOther) {
  for (const auto& [ranks, parity] : {std::pair<uint32_t, uint32_t>{2, 1}, {3, 1}, {4, 1}, {4, 2}, {5, 2}, {6, 3}}) {
    for (uint32_t lost = 1; lost < (1U << ranks); ++lost) {
      reports_.clear();
      claims_.clear();
      Set(ranks, parity);
      std::vector<Rank> gone;
      for (Rank rank = 0; rank < ranks; ++rank) {
        if ((lost >> rank & 1) == 0) continue;
        gone.push_back(rank);
        reports_.erase(Agent(rank));
      }
      const bool enough = gone.size() <= parity;
      EXPECT_EQ(RebuildableRanks(), enough ? gone : std::vector<Rank>{}) << ranks << " ranks, lost " << lost;
    }
  }
}

// Two of four stripes lost a parity, and the image of rank 0 gives a block to each of the others.
TEST_F(ParityTest, AnImageNeedsEveryStripeThatItGaveABlockTo) {
  Set(4, 1);
  reports_.erase("A");
  EXPECT_THAT(RebuildableRanks(), ElementsAre(0));
  reports_["B"].clear_parity();
  EXPECT_THAT(RebuildableRanks(), IsEmpty());
}

// What is kept up to date says what the plain search says, whatever comes and goes.
TEST_F(ParityTest, CoverageIsWhatLackingFinds) {
  Set(5, 2);
  const std::map<std::string, v1::Report> whole = reports_;
  ParityCoverage coverage(kStepTen, claims_, groups_, parity_, {});
  std::mt19937 random(7);
  for (int turn = 0; turn < 2000; ++turn) {
    const std::string agent = Agent(random() % 5);
    v1::Report report = whole.at(agent);
    if (random() % 4 == 0) report.mutable_parity()->DeleteSubrange(static_cast<int>(random() % 2), 1);
    if (random() % 4 == 0) report.mutable_ranks(0)->clear_sealed();
    if (random() % 8 == 0) report.mutable_parity(0)->set_ranks(1, 9);
    if (random() % 8 == 0) *report.add_parity() = report.parity(0);
    const bool lost = random() % 6 == 0;
    if (lost) reports_.erase(agent);
    if (!lost) reports_[agent] = report;
    coverage.Replace(agent, lost ? nullptr : &reports_[agent]);
    const std::vector<Rank> lacking = LackingOf(kStepTen);
    ASSERT_EQ(std::vector<Rank>(coverage.lacking().begin(), coverage.lacking().end()), lacking) << "turn " << turn;
  }
}

TEST_F(ParityTest, TheSourcesNameWhatIsLeft) {
  Set(4, 1);
  reports_.erase("B");
  claims_[1].set_agent("E");
  const auto sources = Sources();
  ASSERT_THAT(sources, SizeIs(1));
  EXPECT_EQ(sources[0].rank(), 1u);
  EXPECT_THAT(sources[0].agents(), IsEmpty());
  EXPECT_THAT(sources[0].parity().ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(sources[0].parity().data(), SizeIs(3));
  EXPECT_EQ(sources[0].parity().data(1).agents(0), "C");
  ASSERT_THAT(sources[0].parity().blocks(), SizeIs(3));
  EXPECT_EQ(sources[0].parity().blocks(1).stripe(), 2u);
  EXPECT_EQ(sources[0].parity().blocks(1).agent(), "C");
}

TEST_F(ParityTest, WhatIsOutOfBoundsIsNotThere) {
  Set(4, 1);
  reports_.erase("A");
  for (auto& [agent, report] : reports_) report.mutable_parity(0)->set_stripe(4);
  EXPECT_THAT(RebuildableRanks(), IsEmpty());
  for (auto& [agent, report] : reports_) report.mutable_parity(0)->set_parity(9);
  EXPECT_THAT(RebuildableRanks(), IsEmpty());
}

TEST_F(ParityTest, TheParentOfANewAttemptIsStillProtected) {
  Set(4, 1);
  v1::DecisionRecord decision;
  decision.set_attempt(2);
  SetRef(kStepTen, decision.mutable_parent());
  v1::LineageEntry* entry = decision.add_lineage();
  entry->set_attempt(1);
  entry->set_last_step(10);
  With([&](const Holdings& holdings) { EXPECT_EQ(StillProtected(holdings, decision, {}), kStepTen); });
  reports_["D"].clear_parity();
  With([&](const Holdings& holdings) { EXPECT_EQ(StillProtected(holdings, decision, {}), SnapshotId()); });
}

}  // namespace
}  // namespace ckptd::job
