#include "daemon/job/losses.h"

#include <memory>

#include "daemon/erasure/rotation.h"
#include "daemon/job/job_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

const SnapshotId kLostStep{1, 10};

// Node ni has rank i; step 10 is sealed everywhere.
class LossesTest : public testing::Test {
 protected:
  void SetRanks(uint32_t ranks) {
    for (Rank rank = 0; rank < ranks; ++rank) {
      v1::RankClaim* claim = ran_.add_ranks();
      claim->set_rank(rank);
      claim->set_agent(NodeOf(rank));
      v1::RankReport* report = reports_[NodeOf(rank)].add_ranks();
      report->set_rank(rank);
      SetRef(kLostStep, report->add_sealed());
    }
  }
  static std::string NodeOf(Rank rank) { return "n" + std::to_string(rank); }
  // Rings of so many nodes, in which each holds for the `copies` - 1 before it.
  void Copy(uint32_t ring, uint32_t copies) {
    copies_ = copies;
    const auto ranks = static_cast<Rank>(ran_.ranks_size());
    for (Rank first = 0; first + ring <= ranks; first += ring) {
      std::vector<std::string>& agents = groups_.emplace_back();
      for (Rank i = 0; i < ring; ++i) agents.push_back(NodeOf(first + i));
      for (Rank i = 0; i < ring; ++i) {
        for (uint32_t copy = 1; copy < copies; ++copy) {
          v1::HeldCopies* held = reports_[agents[(i + copy) % ring]].add_copies();
          held->set_rank(first + i);
          SetRef(kLostStep, held->add_complete());
        }
      }
    }
  }
  void Fold(uint32_t members, uint32_t parity) {
    parity_ = parity;
    const auto ranks = static_cast<Rank>(ran_.ranks_size());
    const erasure::Shape shape = *protect::ShapeOf(members, parity);
    for (Rank first = 0; first + members <= ranks; first += members) {
      std::vector<std::string>& agents = groups_.emplace_back();
      for (Rank i = 0; i < members; ++i) agents.push_back(NodeOf(first + i));
      for (uint32_t stripe = 0; stripe < members; ++stripe) {
        for (uint32_t row = 0; row < parity; ++row) {
          v1::HeldParity* held = reports_[agents[erasure::ParityHolder(shape, stripe, row)]].add_parity();
          for (Rank i = 0; i < members; ++i) held->add_ranks(first + i);
          held->set_parity(parity);
          held->set_stripe(stripe);
          held->set_row(row);
          SetRef(kLostStep, held->add_complete());
        }
      }
    }
  }
  // It answers, with a memory that is empty.
  void Empty(const std::string& node) { reports_[node] = v1::Report(); }
  std::string Tell(const std::set<Rank>& lacking, bool groups_known = true, bool ran_known = true) {
    std::map<std::string, ReportPtr> reports;
    for (const auto& [agent, report] : reports_) reports[agent] = std::make_shared<v1::Report>(report);
    const HadBySnapshot had = WhoHasWhat(reports, [](const std::string&) { return true; });
    LossFacts facts{reports, had, {}, {}, copies_, parity_};
    if (ran_known) facts.node_of = NodesOf(ran_);
    if (groups_known) facts.groups = groups_;
    return TellLosses(facts, kLostStep, lacking);
  }

  v1::DecisionRecord ran_;
  protect::Groups groups_;
  uint32_t copies_ = 0;
  uint32_t parity_ = 0;
  std::map<std::string, v1::Report> reports_;
};

TEST_F(LossesTest, OfCopiesItNamesTheNodeAndItsHolders) {
  SetRanks(8);
  Copy(4, 2);
  for (const char* node : {"n5", "n6"}) reports_.erase(node);
  EXPECT_EQ(Tell({5}), "rank 5: its node n5 and its holder n6 are gone");
  Empty("n6");
  EXPECT_EQ(Tell({5}), "rank 5: its node n5 is gone, its holder n6 answers without it");
  Empty("n5");
  EXPECT_EQ(Tell({5}), "rank 5: its node n5 and its holder n6 answer without it");
}

TEST_F(LossesTest, OfSeveralHoldersItNamesAll) {
  SetRanks(3);
  Copy(3, 3);
  reports_.clear();
  EXPECT_EQ(Tell({1}), "rank 1: its node n1 and its holders n2 n0 are gone");
}

TEST_F(LossesTest, WhatIsNotKnownIsNotTold) {
  SetRanks(4);
  Copy(4, 2);
  reports_.erase("n1");
  EXPECT_EQ(Tell({1}, false), "rank 1: its node n1 is gone, nobody else has it");
  EXPECT_EQ(Tell({1}, false, false), "rank 1: nobody has it");
}

TEST_F(LossesTest, OfParityItNamesTheGroupAndWhomItLost) {
  SetRanks(8);
  Fold(4, 1);
  for (const char* node : {"n5", "n6"}) reports_.erase(node);
  EXPECT_EQ(Tell({5, 6}), "group of ranks 4 5 6 7 (parity 1) lost ranks 5 and 6 with nodes n5 n6: 2 lost, 1 may be");
  EXPECT_EQ(Tell({5, 6}, false), Tell({5, 6})) << "parity says itself what it was made of";
  Empty("n6");
  EXPECT_EQ(Tell({5, 6}),
            "group of ranks 4 5 6 7 (parity 1) lost ranks 5 and 6 with nodes n5 n6 (answers without it): "
            "2 lost, 1 may be");
}

TEST_F(LossesTest, ParityThatIsMissingCountsAsItsMember) {
  SetRanks(4);
  Fold(4, 1);
  reports_.erase("n0");
  reports_["n2"].clear_parity();
  EXPECT_EQ(Tell({0}),
            "group of ranks 0 1 2 3 (parity 1) lost rank 0 with node n0 and parity on node n2 (answers "
            "without it): 2 lost, 1 may be");
}

TEST_F(LossesTest, AGroupWithoutAnyParityIsKnownFromWhoSharedIt) {
  SetRanks(4);
  Fold(4, 2);
  for (const char* node : {"n1", "n2", "n3"}) reports_.erase(node);
  reports_["n0"].clear_parity();
  EXPECT_THAT(Tell({1, 2, 3}), HasSubstr("group of ranks 0 1 2 3 (parity 2) lost ranks 1 2 and 3 with nodes n1 n2 n3"));
  EXPECT_THAT(Tell({1, 2, 3}), EndsWith("4 lost, 2 may be"));
  EXPECT_EQ(Tell({1}, false), "rank 1: its node n1 is gone, nobody else has it");
}

TEST_F(LossesTest, AFewAreTold) {
  SetRanks(4000);
  Copy(4, 2);
  reports_.clear();
  std::set<Rank> all;
  for (Rank rank = 0; rank < 4000; ++rank) all.insert(rank);
  EXPECT_EQ(Tell(all),
            "rank 0: its node n0 and its holder n1 are gone; rank 1: its node n1 and its holder n2 are gone; "
            "rank 2: its node n2 and its holder n3 are gone; and 3997 more ranks");
}

TEST_F(LossesTest, AFewGroupsOfManyMembersAreTold) {
  SetRanks(1000);
  Fold(100, 2);
  for (Rank rank = 0; rank < 1000; ++rank) {
    if (rank % 100 >= 50) reports_.erase(NodeOf(rank));
  }
  std::set<Rank> all;
  for (Rank rank = 0; rank < 1000; ++rank) {
    if (rank % 100 >= 50) all.insert(rank);
  }
  const std::string told = Tell(all);
  EXPECT_LT(told.size(), 1500u) << told;
  EXPECT_THAT(told, HasSubstr("lost ranks 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 and 34 more with nodes n50"));
  EXPECT_THAT(told, EndsWith(": 50 lost, 2 may be; and 7 more groups"));
}

TEST_F(LossesTest, ParityThatMakesNoSenseIsNotBelieved) {
  SetRanks(4);
  Fold(4, 1);
  reports_.erase("n0");
  reports_.erase("n1");
  for (v1::HeldParity& held : *reports_["n2"].mutable_parity()) held.set_parity(200);
  for (v1::HeldParity& held : *reports_["n3"].mutable_parity()) held.set_stripe(77);
  EXPECT_THAT(Tell({0, 1}), EndsWith("4 lost, 1 may be"));
}

}  // namespace
}  // namespace ckptd::job
