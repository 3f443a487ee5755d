// What the coordinator asks the agents to read back, and whom it believes.
#include "daemon/job/proofs.h"

#include <memory>
#include <utility>

#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr SnapshotId kStep{3, 20};

// Agent A coordinates and has rank 0; B has rank 1, C rank 2.
class ProofsTest : public testing::Test {
 protected:
  ProofsTest() {
    config_.agent = "A";
    for (const auto& [rank, agent] : {std::pair{0, "A"}, {1, "B"}, {2, "C"}}) {
      claims_[static_cast<Rank>(rank)].set_rank(static_cast<uint32_t>(rank));
      claims_[static_cast<Rank>(rank)].set_agent(agent);
    }
    reports_.SetMembers({"A", "B", "C"});
    step_.id = kStep;
    step_.world_size = step_.sidecars = 3;
    step_.committed = true;
    for (const char* agent : {"A", "B", "C"}) Say(agent, {});
  }

  v1::Report Report(const std::string& agent, const std::vector<Rank>& right, const SnapshotId& id = kStep) {
    v1::Report report;
    report.set_agent(agent);
    report.set_seq(++seq_);
    report.set_proves(true);
    if (right.empty()) return report;
    SetRef(id, report.mutable_proof()->mutable_step());
    report.mutable_proof()->mutable_ranks()->Assign(right.begin(), right.end());
    return report;
  }
  void Take(const v1::Report& report) {
    if (report.agent() == "A") own_ = report.proof();
    (void)reports_.Take(std::make_shared<v1::Report>(report));
  }
  void Say(const std::string& agent, const std::vector<Rank>& right, const SnapshotId& id = kStep) {
    Take(Report(agent, right, id));
  }
  void SayBad(const std::string& agent, Rank rank, ErrorCode code) {
    v1::Report report = Report(agent, {});
    SetRef(kStep, report.mutable_proof()->mutable_step());
    v1::Proof::Bad& bad = *report.mutable_proof()->add_bad();
    bad.set_rank(rank);
    bad.set_code(static_cast<uint32_t>(code));
    bad.set_error("step-20/part: chunk 1");
    Take(report);
  }

  bool Ask() { return proofs_.Ask(step_, Facts()); }
  std::optional<absl::Status> Found() { return proofs_.Found(Facts()); }
  ProofFacts Facts() { return {claims_, reports_, config_, own_}; }
  std::vector<uint32_t> Others() {
    v1::State state;
    proofs_.Fill(&state);
    EXPECT_EQ(state.to_prove().world_size(), step_.world_size);
    return {state.to_prove().others().begin(), state.to_prove().others().end()};
  }

  Config config_;
  std::map<Rank, v1::RankClaim> claims_;
  Reports reports_;
  StoredStep step_;
  v1::Proof own_;
  Proofs proofs_;
  uint64_t seq_ = 0;
};

TEST_F(ProofsTest, EachAgentReadsTheRanksThatItHas) {
  EXPECT_TRUE(Ask());
  EXPECT_THAT(Others(), ElementsAre());
  EXPECT_FALSE(Ask()) << "told already";
  Say("A", {0});
  Say("B", {1});
  EXPECT_EQ(Found(), std::nullopt) << "rank 2 is still being read";
  Say("C", {2});
  EXPECT_EQ(Found(), absl::OkStatus());
}

TEST_F(ProofsTest, NobodySpeaksForTheRanksOfOthers) {
  Ask();
  Say("A", {0, 1});
  Say("B", {0, 1, 2, 3, 4'000'000'000});
  EXPECT_EQ(Found(), std::nullopt);
  SayBad("B", 2, ErrorCode::CORRUPT);
  EXPECT_EQ(Found(), std::nullopt);
  Say("C", {2});
  EXPECT_EQ(Found(), std::nullopt) << "what B said of rank 1 was taken back";
}

TEST_F(ProofsTest, AProofOfAnotherStepIsNone) {
  Ask();
  Say("A", {0});
  Say("B", {1});
  Say("C", {2}, {3, 10});
  EXPECT_EQ(Found(), std::nullopt);
  Say("C", {2}, {2, 20});
  EXPECT_EQ(Found(), std::nullopt);
}

TEST_F(ProofsTest, ADamagedPartIsNamedAndOutweighsOneThatCannotBeRead) {
  Ask();
  SayBad("B", 1, ErrorCode::STORAGE_IO);
  EXPECT_EQ(CodeOf(*Found()), ErrorCode::STORAGE_IO);
  SayBad("C", 2, ErrorCode::CORRUPT);
  EXPECT_EQ(CodeOf(*Found()), ErrorCode::CORRUPT);
  EXPECT_THAT(std::string(Found()->message()), HasSubstr("rank 2, read back by agent C: step-20/part: chunk 1"));
}

TEST_F(ProofsTest, AnErrorThatSaysOkIsOne) {
  Ask();
  Say("A", {0});
  Say("C", {2});
  for (const auto code : {ErrorCode::OK, static_cast<ErrorCode>(4711)}) {
    SayBad("B", 1, code);
    EXPECT_EQ(CodeOf(*Found()), ErrorCode::INTERNAL);
  }
}

TEST_F(ProofsTest, TheCoordinatorReadsWhatAnOlderAgentHas) {
  v1::Report older = Report("B", {});
  older.set_proves(false);
  Take(older);
  Ask();
  EXPECT_THAT(Others(), ElementsAre(1));
  Say("C", {2});
  Say("A", {0, 1});
  EXPECT_EQ(Found(), absl::OkStatus());
}

TEST_F(ProofsTest, TheCoordinatorReadsWhatAnAgentThatIsGoneHas) {
  Ask();
  for (uint64_t tick = 0; tick <= kSilent; ++tick) {
    reports_.Tick();
    Say("A", {0});
    Say("C", {2});
  }
  EXPECT_TRUE(Ask());
  EXPECT_THAT(Others(), ElementsAre(1));
  EXPECT_EQ(Found(), std::nullopt);
  Say("B", {1});
  EXPECT_EQ(Found(), absl::OkStatus()) << "it is back, and had read it";
}

TEST_F(ProofsTest, TheCoordinatorReadsRanksThatTheAttemptDoesNotHave) {
  step_.world_size = step_.sidecars = 5;
  Ask();
  EXPECT_THAT(Others(), ElementsAre(3, 4));
  Say("A", {0, 3, 4});
  Say("B", {1, 3});
  EXPECT_EQ(Found(), std::nullopt);
  Say("C", {2});
  EXPECT_EQ(Found(), absl::OkStatus());
}

TEST_F(ProofsTest, AStepOfFewerRanksNeedsNoMore) {
  step_.world_size = step_.sidecars = 2;
  Ask();
  Say("A", {0});
  Say("B", {1});
  EXPECT_EQ(Found(), absl::OkStatus());
}

TEST_F(ProofsTest, WithoutItsSidecarsAStepIsDamaged) {
  step_.sidecars = 2;
  Ask();
  EXPECT_EQ(CodeOf(*Found()), ErrorCode::CORRUPT);
  step_.world_size = step_.sidecars = 0;
  Ask();
  EXPECT_EQ(CodeOf(*Found()), ErrorCode::CORRUPT);
}

TEST_F(ProofsTest, WhatIsNotAskedForIsNotTold) {
  EXPECT_FALSE(proofs_.Rest());
  Ask();
  EXPECT_TRUE(proofs_.Rest());
  v1::State state;
  proofs_.Fill(&state);
  EXPECT_FALSE(state.has_to_prove());
  EXPECT_EQ(proofs_.step(), kStep) << "begun";
}

}  // namespace
}  // namespace ckptd::job
