// Parts of steps that are never completed, as the coordinator hears of them: two ranks of one agent.
#include "daemon/job/job_test_util.h"
#include "daemon/job/machine_test_util.h"

namespace ckptd::job {
namespace {

constexpr SnapshotId kHalf{1, 10};
constexpr SnapshotId kLater{1, 20};

class RemainsTest : public JobTest {
 protected:
  // One rank of an attempt that runs.
  struct Said {
    StepId pos = 0;
    std::vector<SnapshotId> sealed = {};
    std::vector<SnapshotId> persisted = {};
    StepId fill = 0;
    std::vector<SnapshotId> unsettled = {};
  };

  void Say(ckptd::Rank rank, const Said& said, v1::RankReport::Load load = v1::RankReport::RUN) {
    auto report = std::make_shared<v1::RankReport>();
    report->set_rank(rank);
    report->set_seen(machine_.view().seen);
    report->set_ticket(7 + rank);
    report->set_load(load);
    report->set_pos(said.pos);
    report->set_fill(said.fill);
    for (const SnapshotId& id : said.sealed) SetRef(id, report->add_sealed());
    for (const SnapshotId& id : said.persisted) SetRef(id, report->add_persisted());
    for (const SnapshotId& id : said.unsettled) SetRef(id, report->add_unsettled());
    Feed(RankChanged{report});
  }
  void Join(ckptd::Rank rank) {
    job::Join join;
    join.rank = rank;
    join.ticket = 7 + rank;
    join.process = 70 + rank;
    join.world_size = 2;
    Feed(join);
  }
  void Both(v1::RankReport::Load load, const std::vector<SnapshotId>& sealed = {}) {
    for (const ckptd::Rank rank : {0, 1}) Say(rank, {.sealed = sealed}, load);
  }

  // Attempt 1, started afresh, in RUN.
  void RunBoth() {
    Join(0);
    Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
    Decide({}, {}, {});
  }
  // An attempt goes on from `newest`; both ranks have that and kLater in memory. On storage is a part of kLater.
  void GoOn(const std::vector<v1::DecisionRecord>& before, const SnapshotId& newest) {
    StoredStep step;
    step.id = kLater;
    step.world_size = 2;
    step.sidecars = 1;
    Join(0);
    NewestRead read{Last<ReadNewest>().op, absl::OkStatus(), true, {}, true, before.back()};
    read.record.set_attempt(before.back().attempt());
    read.record.set_coordinator("B");
    Feed(read);
    Decide(before, {step}, {newest, kLater});
  }
  // Rank 1 of it was that of an agent which is no member any more.
  static v1::DecisionRecord OfTwoNodes(AttemptId attempt, const std::vector<SnapshotId>& lineage) {
    v1::DecisionRecord record = Decision(attempt, lineage, 2);
    record.mutable_ranks(1)->set_agent("C");
    return record;
  }
  void BothDrop(const SnapshotId& newest) {
    for (const ckptd::Rank rank : {0, 1}) Say(rank, {.sealed = {newest}});
  }
  void OtherAgentReports(const std::vector<SnapshotId>& sealed) {
    auto report = std::make_shared<v1::Report>();
    report->set_agent("C");
    report->set_seen(machine_.view().seen);
    report->set_answers(MakeConfig().incarnation);
    report->set_seq(++seq_);
    v1::RankReport* rank = report->add_ranks();
    rank->set_rank(1);
    for (const SnapshotId& id : sealed) SetRef(id, rank->add_sealed());
    Feed(ReportReceived{report});
  }
  void Decide(const std::vector<v1::DecisionRecord>& before, const std::vector<StoredStep>& steps,
              const std::vector<SnapshotId>& sealed) {
    Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
    Feed(Listed{Last<List>().op, absl::OkStatus(), before, steps});
    Join(1);
    Both(v1::RankReport::WAIT, sealed);
    const CreateDecision create = Last<CreateDecision>();
    Feed(DecisionCreated{create.op, absl::OkStatus(), create.decision});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), create.decision.attempt()});
    for (const auto load : {v1::RankReport::WAIT, v1::RankReport::LOADED, v1::RankReport::RUN}) Both(load, sealed);
    ASSERT_EQ(machine_.view().phase, Phase::kRun);
  }

  void Delete(const SnapshotId& id) {
    ASSERT_TRUE(Has<PutMarker>());
    EXPECT_EQ(Last<PutMarker>().id, id);
    EXPECT_TRUE(Last<PutMarker>().remains);
    Feed(MarkerPut{Last<PutMarker>().op, absl::OkStatus()});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), machine_.view().attempt});
    EXPECT_EQ(Last<DeleteStep>().id, id);
    Feed(StepDeleted{Last<DeleteStep>().op, absl::OkStatus()});
  }

  uint64_t seq_ = 0;
};

// Rank 0 had written its part when rank 1 gave its copy up.
TEST_F(RemainsTest, OfAStepThatARankDroppedGo) {
  RunBoth();
  Say(0, {.pos = 10, .sealed = {kHalf}, .persisted = {kHalf}});
  Say(1, {.pos = 10, .fill = 10});
  Say(1, {.pos = 10});
  EXPECT_FALSE(Has<PutMarker>()) << "rank 0 has it in a slot";
  Say(0, {.pos = 10, .persisted = {kHalf}});
  Delete(kHalf);
  Say(0, {.pos = 11, .persisted = {kHalf}});
  EXPECT_FALSE(Has<PutMarker>()) << "it names what has gone";
}

// The storage was full when rank 1 wrote, and the next step is captured.
TEST_F(RemainsTest, OfAStepThatARankCouldNotWriteGo) {
  RunBoth();
  Say(0, {.pos = 10, .sealed = {kHalf}, .persisted = {kHalf}});
  Say(1, {.pos = 10, .sealed = {kHalf}});
  Say(0, {.pos = 20, .sealed = {kLater}, .persisted = {kHalf}});
  Say(1, {.pos = 20, .sealed = {kHalf, kLater}});
  EXPECT_FALSE(Has<PutMarker>()) << "rank 1 may be writing it";
  Say(1, {.pos = 20, .sealed = {kLater}});
  Delete(kHalf);
}

// When its file cannot be replaced, it is flushed.
TEST_F(RemainsTest, AStepWhoseSlotGetsAFreshFileStays) {
  RunBoth();
  Say(0, {.pos = 10, .sealed = {kHalf}, .persisted = {kHalf}});
  Say(1, {.pos = 20, .sealed = {kLater}, .unsettled = {kHalf}});
  Say(0, {.pos = 20, .sealed = {kLater}, .persisted = {kHalf}});
  EXPECT_FALSE(Has<PutMarker>());
  Say(1, {.pos = 20, .sealed = {kLater}});
  Delete(kHalf);
}

TEST_F(RemainsTest, AStepThatARankMaySaveYetStays) {
  RunBoth();
  Say(0, {.pos = 10, .sealed = {kHalf}, .persisted = {kHalf}});
  Say(0, {.pos = 20, .persisted = {kHalf}});
  EXPECT_FALSE(Has<PutMarker>());
  Say(1, {.pos = 10, .fill = 10});
  EXPECT_FALSE(Has<PutMarker>());
  Say(1, {.pos = 10, .persisted = {kHalf}});
  EXPECT_FALSE(Has<PutMarker>());
  EXPECT_EQ(Last<CreateManifest>().id, kHalf);
}

// A REPORT that said so was lost, say.
TEST_F(RemainsTest, WhatTheStorageFindsWholeStays) {
  RunBoth();
  Say(0, {.pos = 10, .sealed = {kHalf}, .persisted = {kHalf}});
  Say(1, {.pos = 20});
  Say(0, {.pos = 20, .persisted = {kHalf}});
  MarkerPut answer;
  answer.op = Last<PutMarker>().op;
  answer.whole = 2;
  Feed(answer);
  EXPECT_FALSE(Has<CheckNewest>());
  Say(0, {.pos = 21, .persisted = {kHalf}});
  EXPECT_FALSE(Has<PutMarker>()) << "it is not asked for again and again";
  Say(1, {.pos = 21, .persisted = {kHalf}});
  EXPECT_EQ(Last<CreateManifest>().id, kHalf);
}

TEST_F(RemainsTest, WhatIsBeingDeletedIsNotCommitted) {
  RunBoth();
  Say(0, {.pos = 10, .sealed = {kHalf}, .persisted = {kHalf}});
  Say(1, {.pos = 20});
  Say(0, {.pos = 20, .persisted = {kHalf}});
  ASSERT_TRUE(Has<PutMarker>());
  Say(1, {.pos = 20, .persisted = {kHalf}});
  EXPECT_FALSE(Has<CreateManifest>());
}

// They are on the history, and no newer step is committed.
TEST_F(RemainsTest, OfTheAttemptBeforeGoWhenNoRankHoldsThem) {
  GoOn({Decision(1, {}, 2)}, {1, 30});
  Say(0, {.sealed = {{1, 30}}});
  EXPECT_FALSE(Has<PutMarker>()) << "rank 1 may be writing it";
  Say(1, {.sealed = {{1, 30}}});
  Delete(kLater);
}

// It may not have heard of this attempt, and flush what it has in memory.
TEST_F(RemainsTest, OfAnAgentThatIsNoMemberAnyMoreStayUntilItReports) {
  GoOn({OfTwoNodes(1, {})}, {1, 30});
  BothDrop({1, 30});
  EXPECT_FALSE(Has<PutMarker>()) << "nobody knows what C has";
  OtherAgentReports({kLater});
  EXPECT_FALSE(Has<PutMarker>());
  OtherAgentReports({});
  Delete(kLater);
}

TEST_F(RemainsTest, OfAStepThatSuchAnAgentLoadedToo) {
  GoOn({Decision(1, {}, 2), OfTwoNodes(2, {kLater})}, {2, 30});
  BothDrop({2, 30});
  EXPECT_FALSE(Has<PutMarker>());
  OtherAgentReports({});
  Delete(kLater);
}

TEST_F(RemainsTest, OfAStepThatSuchAnAgentDidNotLoadGo) {
  GoOn({Decision(1, {}, 2), OfTwoNodes(2, {{1, 25}})}, {2, 30});
  BothDrop({2, 30});
  Delete(kLater);
}

// Attempt 2 may have gone on from it, on whatever nodes.
TEST_F(RemainsTest, OfAStepThatTheHistoryWentOnFromStayWhereADecisionIsMissing) {
  GoOn({Decision(1, {}, 2), Decision(3, {kLater}, 2)}, {3, 30});
  BothDrop({3, 30});
  EXPECT_FALSE(Has<PutMarker>());
}

TEST_F(RemainsTest, OfAStepThatTheHistoryWentOnFromGoWhereNoneIsMissing) {
  GoOn({Decision(1, {}, 2), Decision(2, {kLater}, 2), Decision(3, {kLater}, 2)}, {3, 30});
  BothDrop({3, 30});
  Delete(kLater);
}

TEST_F(RemainsTest, WhoseOwnDecisionIsMissingStay) {
  GoOn({Decision(2, {{1, 25}}, 2)}, {2, 30});
  BothDrop({2, 30});
  EXPECT_FALSE(Has<PutMarker>());
}

}  // namespace
}  // namespace ckptd::job
