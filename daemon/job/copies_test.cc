// An attempt whose agents keep copies for each other.
#include "daemon/job/machine_test_util.h"
#include "gmock/gmock.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;

v1::HeldCopies Held(Rank rank, const std::vector<SnapshotId>& ids) {
  v1::HeldCopies held;
  held.set_rank(rank);
  for (const SnapshotId& id : ids) SetRef(id, held.add_complete());
  return held;
}

// A has rank 0 of 1; B, another agent, is played by hand.
class CopiesTest : public JobTest {
 protected:
  CopiesTest() { Start(0); }

  void Start(AttemptId seen) {
    Config config = MakeConfig();
    config.members = {"A", "B"};
    config.copies = 2;
    config.place = [this](const std::vector<std::string>& agents, const Groups& before) {
      before_ = before;
      return agents.size() < 2 ? Groups() : Groups{agents};
    };
    machine_ = Machine(std::move(config));
    Feed(Started{seen, 7, 0, kept_});
  }
  // This agent restarts in attempt 2, which it had decided; as far as asking what everybody has.
  void Restart(const v1::DecisionRecord& decision) {
    Start(2);
    NewestRead read{Last<ReadNewest>().op, absl::OkStatus(), true, {}, true, decision};
    read.record.set_attempt(2);
    read.record.set_coordinator("A");
    read.record.set_rank0_ticket(7);
    read.record.set_world_size(1);
    Feed(read);
    Feed(Listed{Last<List>().op, absl::OkStatus(), {OfOne(), decision}, {}});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 2});
  }

  void FromB(const std::vector<v1::HeldCopies>& copies, AttemptId seen = 0) {
    From("B", copies, seen != 0 ? seen : machine_.view().attempt, 1000);
  }
  // `heard`: up to this version of STATE.
  void From(const std::string& agent, const std::vector<v1::HeldCopies>& copies, AttemptId seen, uint64_t heard) {
    Feed(ReportReceived{ReportOf(agent, copies, seen, heard)});
  }
  std::shared_ptr<v1::Report> ReportOf(const std::string& agent, const std::vector<v1::HeldCopies>& copies,
                                       AttemptId seen, uint64_t heard) {
    auto report = std::make_shared<v1::Report>();
    report->set_agent(agent);
    report->set_seen(seen);
    report->set_heard(heard);
    report->set_answers(5);
    report->set_incarnation(9);
    report->set_seq(++seq_);
    report->mutable_copies()->Assign(copies.begin(), copies.end());
    return report;
  }
  // Attempt 2 after attempt 1, whose rank was at A; its region is a new one where `lost`.
  void Gather() {
    JoinRankZero();
    NewestRead read{Last<ReadNewest>().op, absl::OkStatus(), true, {}, true, OfOne()};
    read.record.set_attempt(1);
    read.record.set_coordinator("B");
    Feed(read);
    Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
    Feed(Listed{Last<List>().op, absl::OkStatus(), {OfOne()}, {}});
    Rank(v1::RankReport::WAIT);
  }
  static v1::DecisionRecord OfOne() {
    v1::DecisionRecord decision;
    decision.set_attempt(1);
    v1::RankClaim* claim = decision.add_ranks();
    claim->set_agent("A");
    claim->set_region_id(6);  // lost since
    return decision;
  }
  void Decide() {
    const CreateDecision create = Last<CreateDecision>();
    decision_ = create.decision;
    Feed(DecisionCreated{create.op, absl::OkStatus(), create.decision});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), create.decision.attempt()});
  }
  // Attempt 2 runs from step 10, which B had a copy of.
  void RunFromTen() {
    Gather();
    FromB({Held(0, {{1, 10}})});
    Decide();
    Rank(v1::RankReport::WAIT, {{1, 10}});
    Rank(v1::RankReport::LOADED, {{1, 10}});
    Rank(v1::RankReport::RUN, {{1, 10}});
  }

  // What ranks 0 and 1 here and rank 2 at B say.
  void All(v1::RankReport::Load load, const std::vector<SnapshotId>& sealed) {
    const auto fill = [&](ckptd::Rank rank, v1::RankReport* report) {
      report->set_rank(rank);
      report->set_seen(machine_.view().seen);
      report->set_ticket(7 + rank);
      report->set_load(load);
      report->set_world_size(3);
      for (const SnapshotId& id : sealed) SetRef(id, report->add_sealed());
    };
    auto theirs = std::make_shared<v1::Report>();
    theirs->set_agent("B");
    theirs->set_seen(machine_.view().attempt);
    theirs->set_heard(1000);
    theirs->set_answers(5);
    theirs->set_incarnation(9);
    theirs->set_seq(++seq_);
    fill(2, theirs->add_ranks());
    Feed(ReportReceived{theirs});
    for (const ckptd::Rank rank : {1, 0}) {
      auto report = std::make_shared<v1::RankReport>();
      fill(rank, report.get());
      Feed(RankChanged{report});
    }
  }

  Groups before_;
  v1::DecisionRecord decision_;
  uint64_t seq_ = 0;
};

TEST_F(CopiesTest, ALostRankIsRestoredFromItsCopy) {
  Gather();
  FromB({Held(0, {{1, 10}})});
  EXPECT_EQ(ToId(Last<CreateDecision>().decision.parent()), (SnapshotId{1, 10}));
  Decide();
  ASSERT_EQ(state_->phase(), v1::State::LOAD);
  ASSERT_EQ(state_->sources_size(), 1);
  EXPECT_THAT(state_->sources(0).agents(), ElementsAre("B"));
  ASSERT_EQ(state_->groups_size(), 1);
  EXPECT_THAT(state_->groups(0).agents(), ElementsAre("A", "B")) << "one rank's agent is too few: all members";
}

TEST_F(CopiesTest, CopiesOfAnotherAttemptAreNotCounted) {
  Gather();
  FromB({Held(0, {{1, 10}})}, 1);
  EXPECT_FALSE(Has<CreateDecision>()) << "B has not answered this attempt";
  Feed(TimerFired{TimerKind::kDecide, 2});
  EXPECT_FALSE(Has<CreateDecision>());
  ASSERT_EQ(state_->refusals_size(), 1) << "B may hold copies, so 0 is not certain";
  EXPECT_THAT(state_->refusals(0).message(), testing::HasSubstr("no answer from agents B"));
}

// Nobody has rank 1's part: whose node that was, the decision before tells.
TEST_F(CopiesTest, AStepThatIsPassedOverTellsWhomItLost) {
  v1::DecisionRecord before = OfOne();
  before.add_ranks()->set_rank(1);
  before.mutable_ranks(1)->set_agent("C");
  Join join;
  join.ticket = 7;
  join.process = 70;
  join.world_size = 2;
  Feed(join);
  NewestRead read{Last<ReadNewest>().op, absl::OkStatus(), true, {}, true, before};
  read.record.set_attempt(1);
  read.record.set_coordinator("B");
  Feed(read);
  Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
  Feed(Listed{Last<List>().op, absl::OkStatus(), {before}, {}});
  Rank(v1::RankReport::WAIT);
  auto report = ReportOf("B", {Held(0, {{1, 10}, {1, 20}}), Held(1, {{1, 10}})}, 2, 1000);
  v1::RankReport* rank = report->add_ranks();
  rank->set_rank(1);
  rank->set_ticket(8);
  rank->set_load(v1::RankReport::WAIT);
  rank->set_world_size(2);
  Feed(ReportReceived{report});
  const v1::DecisionRecord decision = Last<CreateDecision>().decision;
  EXPECT_EQ(ToId(decision.parent()), (SnapshotId{1, 10}));
  ASSERT_EQ(decision.skipped_size(), 1);
  EXPECT_EQ(decision.skipped(0).reason(),
            "not committed, and in the memory of 1 of 2 ranks: rank 1: its node C is gone, nobody else has it");
  EXPECT_EQ(decision.skipped(0).rank(), 1u);
}

TEST_F(CopiesTest, ACopyThatCannotBeReadIsNotTakenAgain) {
  Gather();
  FromB({Held(0, {{1, 10}, {1, 8}})});
  Decide();
  auto report = std::make_shared<v1::RankReport>();
  report->set_seen(2);
  report->set_ticket(7);
  report->set_load(v1::RankReport::FAILED);
  report->set_failed_source(v1::RankReport::REPLICA);
  report->set_failure_code(static_cast<uint32_t>(ErrorCode::NOT_FOUND));
  report->set_failure("nobody could give it");
  Feed(RankChanged{report});
  Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
  Feed(Listed{Last<List>().op, absl::OkStatus(), {OfOne()}, {}});
  Rank(v1::RankReport::WAIT);
  FromB({Held(0, {{1, 10}, {1, 8}})});
  const v1::DecisionRecord decision = Last<CreateDecision>().decision;
  EXPECT_EQ(ToId(decision.parent()), (SnapshotId{1, 8}));
  ASSERT_EQ(decision.skipped_size(), 1);
  EXPECT_THAT(decision.skipped(0).reason(), testing::HasSubstr("nobody could give it"));
}

TEST_F(CopiesTest, ProtectedIsToldWhenTheCopyIsThere) {
  RunFromTen();
  FromB({Held(0, {{1, 10}})});
  EXPECT_EQ(machine_.view().protected_, (SnapshotId{1, 10})) << "its parent";
  Rank(v1::RankReport::RUN, {{1, 10}, {2, 12}});
  EXPECT_EQ(machine_.view().watermark, (SnapshotId{2, 12}));
  EXPECT_EQ(machine_.view().protecting, (SnapshotId{2, 12}));
  FromB({Held(0, {{1, 10}})});
  EXPECT_THAT(machine_.view().unprotected, ElementsAre(0));
  EXPECT_EQ(ToId(state_->protected_()), (SnapshotId{1, 10}));
  FromB({Held(0, {{1, 10}, {2, 12}})});
  EXPECT_EQ(ToId(state_->protected_()), (SnapshotId{2, 12}));
  EXPECT_TRUE(machine_.view().protected_now);
  Feed(MembersChanged{{"A"}});
  EXPECT_EQ(machine_.view().protected_, (SnapshotId{2, 12}));
  EXPECT_FALSE(machine_.view().protected_now) << "B left";
}

// B has not heard that step 10 was given up, and tells what it did hear.
TEST_F(CopiesTest, ACoordinatorThatRestartsKnowsWhatItGaveUp) {
  RunFromTen();
  FromB({Held(0, {{1, 10}})});
  ASSERT_TRUE(machine_.view().protected_now);
  for (int i = 0; i < 5; ++i) Feed(TimerFired{TimerKind::kResend, 0});
  ASSERT_FALSE(machine_.view().protected_now);
  Restart(decision_);
  Rank(v1::RankReport::RUN, {{1, 10}});
  auto report = ReportOf("B", {Held(0, {{1, 10}})}, 2, 1000);
  SetRef({1, 10}, report->mutable_protected_());
  SetRef({1, 10}, report->mutable_protecting());
  Feed(ReportReceived{report});
  EXPECT_EQ(machine_.view().protected_, (SnapshotId{1, 10}));
  EXPECT_FALSE(machine_.view().protected_now);
}

// All agents end at once, as in an upgrade. Else A would give the slot of the protected step to training, which has
// captured a newer one that B has no copy of yet.
TEST_F(CopiesTest, WhatIsProtectedStaysSoWhenAllAgentsRestart) {
  RunFromTen();
  FromB({Held(0, {{1, 10}})});
  Rank(v1::RankReport::RUN, {{1, 10}, {2, 12}});
  FromB({Held(0, {{2, 12}})});
  Rank(v1::RankReport::RUN, {{2, 12}, {2, 14}});
  ASSERT_EQ(machine_.view().protected_, (SnapshotId{2, 12}));
  ASSERT_EQ(machine_.view().protecting, (SnapshotId{2, 14}));
  Restart(decision_);
  Rank(v1::RankReport::RUN, {{2, 12}, {2, 14}});
  FromB({Held(0, {{2, 12}})});
  EXPECT_EQ(ToId(state_->protected_()), (SnapshotId{2, 12}));
  EXPECT_EQ(ToId(state_->protecting()), (SnapshotId{2, 14}));
  EXPECT_EQ(ToId(state_->watermark()), (SnapshotId{2, 14})) << "never less than what was told";
  EXPECT_TRUE(machine_.view().protected_now);
}

TEST_F(CopiesTest, WhoIsSilentForLongHoldsNothing) {
  RunFromTen();
  FromB({Held(0, {{1, 10}})});
  ASSERT_TRUE(machine_.view().protected_now);
  for (int i = 0; i < 5; ++i) Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_FALSE(machine_.view().protected_now);
  EXPECT_EQ(ToId(state_->unprotected()), (SnapshotId{1, 10}));
}

// A, whose trainer stands still, saves nothing new. B is silent: C holds in its place, and the same step is protected.
TEST_F(CopiesTest, AJobThatStandsStillIsProtectedAnewElsewhere) {
  RunFromTen();
  Feed(MembersChanged{{"A", "B", "C"}});
  FromB({Held(0, {{1, 10}})});
  ASSERT_TRUE(machine_.view().protected_now);
  for (int i = 0; i < 9; ++i) Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_FALSE(machine_.view().protected_now);
  EXPECT_THAT(machine_.view().groups, ElementsAre(ElementsAre("A", "B"))) << "it may come back";
  From("C", {}, machine_.view().attempt, 1);
  for (int i = 0; i < 3; ++i) Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_THAT(machine_.view().groups, ElementsAre(ElementsAre("A", "C")));
  From("C", {Held(0, {{1, 10}})}, machine_.view().attempt, 1);
  EXPECT_FALSE(machine_.view().protected_now) << "it said so before it heard of the loss";
  From("C", {Held(0, {{1, 10}})}, machine_.view().attempt, 1000);
  EXPECT_TRUE(machine_.view().protected_now);
  EXPECT_EQ(state_->protection_turns(), 1u);
  FromB({});
  EXPECT_TRUE(machine_.view().protected_now) << "B is back with nothing, and is not needed";
}

TEST_F(CopiesTest, PlacesAgainWhenAMemberOfThePlacementLeavesOrIsNeeded) {
  RunFromTen();
  Feed(MembersChanged{{"A", "B", "C"}});
  EXPECT_THAT(machine_.view().groups, ElementsAre(ElementsAre("A", "B"))) << "nobody needs C";
  Feed(MembersChanged{{"A", "C"}});
  for (int i = 0; i < 11; ++i) Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_THAT(machine_.view().groups, ElementsAre(ElementsAre("A", "C")));
  EXPECT_THAT(before_, ElementsAre(ElementsAre("A", "B")));
}

// An etcd was cut off for longer than its leases: all have left, and come back one by one with what they hold.
TEST_F(CopiesTest, WhoIsNoMemberForAMomentKeepsItsSeat) {
  RunFromTen();
  Feed(MembersChanged{{"A", "B", "C"}});
  FromB({Held(0, {{1, 10}})});
  ASSERT_TRUE(machine_.view().protected_now);
  for (int i = 0; i < 20; ++i) {
    FromB({Held(0, {{1, 10}})});
    Feed(TimerFired{TimerKind::kResend, 0});
  }
  Feed(MembersChanged{{"A"}});
  EXPECT_THAT(machine_.view().groups, ElementsAre(ElementsAre("A", "B")));
  EXPECT_FALSE(machine_.view().protected_now) << "B may be gone for good";
  Feed(MembersChanged{{"A", "C"}});
  for (int i = 0; i < 9; ++i) Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_THAT(machine_.view().groups, ElementsAre(ElementsAre("A", "B")));
  Feed(MembersChanged{{"A", "B", "C"}});
  for (int i = 0; i < 9; ++i) {
    FromB({Held(0, {{1, 10}})});
    Feed(TimerFired{TimerKind::kResend, 0});
  }
  EXPECT_THAT(machine_.view().groups, ElementsAre(ElementsAre("A", "B")));
  EXPECT_TRUE(machine_.view().protected_now);
  EXPECT_TRUE(before_.empty()) << "nothing was placed anew";
}

// However long it takes until there are enough again: who comes back finds its seat.
TEST_F(CopiesTest, WhereTooFewAreLeftTheGroupsStay) {
  RunFromTen();
  FromB({Held(0, {{1, 10}})});
  Feed(MembersChanged{{"A"}});
  for (int i = 0; i < 30; ++i) Feed(TimerFired{TimerKind::kResend, 0});
  EXPECT_THAT(machine_.view().groups, ElementsAre(ElementsAre("A", "B")));
  EXPECT_FALSE(machine_.view().protected_now);
  EXPECT_EQ(ToId(state_->unprotected()), (SnapshotId{1, 10})) << "training does not wait for it";
  Feed(MembersChanged{{"A", "B"}});
  for (int i = 0; i < 2; ++i) FromB({Held(0, {{1, 10}})});
  EXPECT_THAT(machine_.view().groups, ElementsAre(ElementsAre("A", "B")));
  EXPECT_TRUE(machine_.view().protected_now);
}

// A has ranks 0 and 1 of 3, B has rank 2: nobody shares parity with rank 1, so it would be waited for without end, and
// two slots are full by then.
TEST_F(CopiesTest, ParityThatARankCannotHaveIsNotWaitedFor) {
  Config config = MakeConfig();
  config.members = {"A", "B"};
  config.parity = 1;
  config.place = [](const std::vector<std::string>& agents, const Groups&) { return Groups{agents}; };
  machine_ = Machine(std::move(config));
  Feed(Started{0, 7});
  Join zero;
  zero.ticket = 7;
  zero.world_size = 3;
  Feed(zero);
  Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
  Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
  Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
  All(v1::RankReport::WAIT, {});
  Decide();
  for (const auto load : {v1::RankReport::WAIT, v1::RankReport::LOADED, v1::RankReport::RUN}) All(load, {});
  All(v1::RankReport::RUN, {{1, 10}});
  EXPECT_EQ(machine_.view().protecting, (SnapshotId{1, 10}));
  All(v1::RankReport::RUN, {{1, 10}, {1, 20}});
  EXPECT_EQ(machine_.view().watermark, (SnapshotId{1, 20}));
  EXPECT_EQ(machine_.view().protecting, (SnapshotId{1, 20}));
  EXPECT_EQ(machine_.view().protected_, SnapshotId());
}

TEST_F(CopiesTest, NothingIsReportedBeforeTheCopiesAreFrozen) {
  Feed(CopiesChanged{0, {Held(3, {{1, 10}})}});
  Gather();
  EXPECT_FALSE(Has<SendReport>());
  Feed(CopiesChanged{2, {Held(3, {{1, 10}})}});
  ASSERT_TRUE(Has<SendReport>());
  EXPECT_EQ(Last<SendReport>().report->copies(0).rank(), 3u);
}

TEST_F(CopiesTest, WhoHasNoRankReportsItsCopiesToo) {
  Feed(CopiesChanged{4, {Held(3, {{1, 10}})}});
  auto state = std::make_shared<v1::State>();
  state->set_attempt(4);
  state->set_coordinator("B");
  state->set_user("1000");
  Feed(StateReceived{state});
  ASSERT_TRUE(Has<SendReport>());
  EXPECT_EQ(Last<SendReport>().report->ranks_size(), 0);
  EXPECT_EQ(Last<SendReport>().report->copies_size(), 1);
}

}  // namespace
}  // namespace ckptd::job
