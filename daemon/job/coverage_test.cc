// What is kept up to date REPORT by REPORT is what a look at everything would say.
#include "daemon/job/coverage.h"

#include <algorithm>
#include <memory>
#include <random>

#include "daemon/job/job_test_util.h"
#include "daemon/job/protection.h"
#include "daemon/job/reports.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

constexpr Rank kRanks = 6;
const std::vector<std::string> kAgents = {"A", "B", "C", "D"};

// Ranks at random agents, which report random holdings, fall silent, and leave; `seed` says how.
class Chance {
 public:
  explicit Chance(uint32_t seed) : random_(seed) {
    copies_ = 2 + Below(2);
    rules_.only_other_agents_protect = seed % 4 != 1;
    rules_.all_ranks_protect = seed % 4 != 2;
    for (Rank rank = 0; rank < kRanks; ++rank) claims_[rank].set_agent(OneOf(kAgents));
    reports_.SetMembers(members_);
    reports_.Assign(claims_);
    protection_.Reset({}, {});
  }

  void Act() {
    const uint32_t dice = Below(100);
    if (dice < 80) {
      reports_.Take(MakeReport());
    } else if (dice < 95) {
      reports_.Tick();
    } else {
      members_ = kAgents;
      if (Below(2) == 0) std::erase(members_, OneOf(kAgents));
      reports_.SetMembers(members_);
    }
    if (Below(20) == 0) protection_.Raise({{}, {1, 1 + Below(3)}, {}});
    if (Below(100) == 0) protection_.Reset({1, 1 + Below(3)}, {});
  }

  // As Coordinator does.
  void Update() {
    const Holdings holdings{reports_.by_agent(), claims_, copies_,
                            [this](const std::string& agent) { return reports_.Alive(agent); }};
    for (const std::string& agent : reports_.TakeChanged()) protection_.Heard(holdings, agent);
    judged_ = protection_.marks().target;
    Protection::Facts facts;
    facts.watermark = {1, 1 + Below(3)};
    facts.owners_reported = reports_.AllFacts();
    facts.settled = true;
    (void)protection_.Update(holdings, facts, rules_);
  }

  void Compare() const {
    const Holdings holdings{reports_.by_agent(), claims_, copies_,
                            [this](const std::string& agent) { return PlainlyAlive(agent); }};
    const std::vector<Rank> expected = judged_.none() ? std::vector<Rank>() : Lacking(holdings, judged_, rules_);
    const std::set<Rank>& lacking = protection_.lacking();
    EXPECT_EQ(std::vector<Rank>(lacking.begin(), lacking.end()), expected);
    for (const std::string& agent : kAgents) EXPECT_EQ(reports_.Alive(agent), PlainlyAlive(agent)) << agent;
    const auto& facts = reports_.Facts();
    EXPECT_EQ(reports_.AllFacts(), std::count(facts.begin(), facts.end(), nullptr) == 0);
    EXPECT_EQ(reports_.AllMembersReported(),
              std::all_of(members_.begin(), members_.end(), [&](const auto& agent) { return reports_.Has(agent); }));
  }

  [[nodiscard]] bool lacking() const { return !protection_.lacking().empty(); }
  [[nodiscard]] bool complete() const { return !judged_.none() && protection_.lacking().empty(); }

 private:
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  const std::string& OneOf(const std::vector<std::string>& of) { return of[Below(static_cast<uint32_t>(of.size()))]; }

  [[nodiscard]] bool PlainlyAlive(const std::string& agent) const {
    uint64_t heard = 0;
    return reports_.Silent(agent, &heard) <= kSilent &&
           std::find(members_.begin(), members_.end(), agent) != members_.end();
  }

  // Steps 1 to 3, most of them; now and then the same rank twice, or one that nobody claimed.
  ReportPtr MakeReport() {
    auto report = std::make_shared<v1::Report>();
    report->set_agent(OneOf(kAgents));
    report->set_seq(++seq_);
    const auto fill = [this](auto* refs) {
      for (StepId step = 1; step <= 3; ++step) {
        if (Below(8) != 0) SetRef({1, step}, refs->Add());
      }
    };
    for (const auto& [rank, claim] : claims_) {
      if (claim.agent() != report->agent() && Below(8) != 0) continue;
      report->add_ranks()->set_rank(rank);
      fill(report->mutable_ranks(report->ranks_size() - 1)->mutable_sealed());
    }
    for (uint32_t times = kRanks + Below(4); times != 0; --times) {
      v1::HeldCopies* held = report->add_copies();
      held->set_rank(Below(kRanks + 1));
      fill(held->mutable_complete());
    }
    return report;
  }

  std::mt19937 random_;
  uint32_t copies_ = 2;
  Rules rules_;
  std::map<Rank, v1::RankClaim> claims_;
  std::vector<std::string> members_ = kAgents;
  uint64_t seq_ = 0;
  Reports reports_;
  Protection protection_;
  SnapshotId judged_;
};

TEST(Coverage, IsWhatALookAtEverythingSays) {
  int lacking = 0;
  int complete = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    Chance chance(seed);
    for (int step = 0; step < 200; ++step) {
      chance.Act();
      if (step % 3 == 0) continue;  // several changes at once
      chance.Update();
      chance.Compare();
      ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed << " step " << step;
      lacking += chance.lacking() ? 1 : 0;
      complete += chance.complete() ? 1 : 0;
    }
  }
  EXPECT_GT(lacking, 500) << "the random holdings must be of both kinds";
  EXPECT_GT(complete, 500);
}

TEST(Coverage, NobodyHasAnythingAtFirst) {
  std::map<Rank, v1::RankClaim> claims;
  claims[0].set_agent("A");
  claims[3].set_agent("B");
  Coverage coverage({1, 10}, claims, 2, {});
  EXPECT_EQ(coverage.lacking(), (std::set<Rank>{0, 3}));
  v1::Report report;
  for (const Rank rank : {0, 3, 7}) {
    report.add_copies()->set_rank(rank);
    SetRef({1, 10}, report.mutable_copies(report.copies_size() - 1)->add_complete());
  }
  coverage.Replace("C", &report);
  coverage.Replace("D", &report);
  EXPECT_TRUE(coverage.lacking().empty());
  coverage.Replace("C", nullptr);
  EXPECT_EQ(coverage.lacking(), (std::set<Rank>{0, 3}));
}

}  // namespace
}  // namespace ckptd::job
