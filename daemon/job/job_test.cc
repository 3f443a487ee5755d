// The parts of the job's machine, and one agent from restore() to a durable step. The randomised test in tests/protocol
// drives the whole machine.
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "daemon/format/snapshot_ref.h"
#include "daemon/job/job_test_util.h"
#include "daemon/job/lineage.h"
#include "daemon/job/machine_test_util.h"
#include "daemon/job/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::HasSubstr;

TEST(JobTable, IsWhatTheDocumentSays) {
  const std::string path = CKPTD_TRANSITIONS;
  if (std::getenv("UPDATE") != nullptr) std::ofstream(path) << TableMarkdown();
  std::stringstream committed;
  committed << std::ifstream(path).rdbuf();
  EXPECT_EQ(committed.str(), TableMarkdown()) << "run UPDATE=1 job_test and commit " << path;
}

TEST(Lineage, CutsAtTheParentsOfEachAttempt) {
  const v1::DecisionRecord third = Decision(3, {{2, 30}, {1, 20}});
  EXPECT_TRUE(OnLineage(third, {3, 999}));
  EXPECT_TRUE(OnLineage(third, {2, 30}));
  EXPECT_FALSE(OnLineage(third, {2, 31}));
  EXPECT_TRUE(OnLineage(third, {1, 20}));
  EXPECT_FALSE(OnLineage(third, {1, 21}));
  v1::DecisionRecord child;
  SetParent(third, {1, 15}, &child);  // a roll-back over attempt 2
  EXPECT_TRUE(OnLineage(child, {1, 15}));
  EXPECT_FALSE(OnLineage(child, {1, 16}));
  EXPECT_FALSE(OnLineage(child, {2, 30}));
}

TEST(Lineage, AMarkerIsVoidAfterALaterChoice) {
  StoredStep step;
  step.id = {1, 10};
  step.marker = 2;
  EXPECT_TRUE(MarkerHolds(step, {Decision(2, {{1, 10}})})) << "the deleter's own parent is no later choice";
  EXPECT_FALSE(MarkerHolds(step, {Decision(3, {{1, 10}})}));
}

TEST_F(JobTest, RunsFromRestoreToDurable) {
  Run();
  EXPECT_EQ(state_->phase(), v1::State::RUN);
  Rank(v1::RankReport::RUN, {{1, 10}});
  EXPECT_EQ(state_->watermark().step(), 10u);
  EXPECT_EQ(state_->floor(), 11u);
  Rank(v1::RankReport::RUN, {{1, 10}}, {{1, 10}});
  EXPECT_EQ(Last<CreateManifest>().world_size, 1u);
  Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
  EXPECT_EQ(machine_.view().durable.step, 0u) << "not before the newest record was looked at again";
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  EXPECT_EQ(state_->durable().step(), 10u);
}

TEST_F(JobTest, AStepThatCannotBeCommittedHoldsUpNone) {
  Run();
  Rank(v1::RankReport::RUN, {{1, 10}}, {{1, 10}});
  Feed(ManifestCreated{Last<CreateManifest>().op, Error(ErrorCode::CORRUPT, "sidecar of rank 1")});
  Rank(v1::RankReport::RUN, {{1, 20}}, {{1, 10}, {1, 20}});
  EXPECT_EQ(Last<CreateManifest>().id, (SnapshotId{1, 20}));
  Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  EXPECT_EQ(state_->durable().step(), 20u);
}

// Nothing else would be flushed in this attempt.
TEST_F(JobTest, AStepThatCannotBeCommittedHoldsUpNoFlush) {
  for (const ErrorCode code : {ErrorCode::CORRUPT, ErrorCode::NOT_FOUND, ErrorCode::STORAGE_IO}) {
    Config config = MakeConfig();
    config.flush.newest_only = true;
    machine_ = Machine(std::move(config));
    Feed(Started{});
    Run();
    Rank(v1::RankReport::RUN, {{1, 10}});
    EXPECT_EQ(state_->flush().step(), 10u);
    Rank(v1::RankReport::RUN, {{1, 10}}, {{1, 10}});
    Feed(ManifestCreated{Last<CreateManifest>().op, Error(code, "/data/gpt/step-10/rank-1.json")});
    EXPECT_THAT(machine_.view().last_error, HasSubstr("step 10 cannot be committed: /data/gpt/step-10/rank-1.json"));
    EXPECT_EQ(CodeOf(machine_.view().trouble), code);
    Rank(v1::RankReport::RUN, {{1, 10}, {1, 20}}, {{1, 10}});
    EXPECT_EQ(state_->flush().step(), 20u) << InfoOf(code).name;
  }
}

TEST_F(JobTest, AStepWhoseCommitFailsIsCommittedAfterTheNext) {
  Run();
  Rank(v1::RankReport::RUN, {{1, 10}}, {{1, 10}});
  Feed(ManifestCreated{Last<CreateManifest>().op, Error(ErrorCode::STORAGE_IO, "rank-1.json")});
  Rank(v1::RankReport::RUN, {{1, 20}}, {{1, 10}, {1, 20}});
  EXPECT_FALSE(Has<CreateManifest>()) << "the storage has failed a moment ago";
  Feed(TimerFired{TimerKind::kRetry, 1});
  EXPECT_EQ(Last<CreateManifest>().id, (SnapshotId{1, 20}));
  Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  EXPECT_EQ(state_->durable().step(), 20u);
  EXPECT_THAT(machine_.view().last_error, HasSubstr("step 10 cannot be committed")) << "not because of a later one";
  EXPECT_EQ(Last<CreateManifest>().id, (SnapshotId{1, 10}));
  Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  EXPECT_EQ(state_->durable().step(), 20u);
  EXPECT_EQ(machine_.view().last_error, "");
  EXPECT_EQ(machine_.view().stored.size(), 2u);
}

// Whole, and not committed when its attempt ended.
TEST_F(JobTest, ALateCommitThatFailsIsAFailureOfTheStorage) {
  ListOneThatIsNotCommitted();
  Feed(ManifestCreated{Last<CreateManifest>().op, Error(ErrorCode::STORAGE_IO, "fsync /data/gpt/step-10")});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::STORAGE_IO);
  EXPECT_THAT(Last<Refuse>().message, HasSubstr("job gpt: committing step 10: fsync /data/gpt/step-10"));
  Rank(v1::RankReport::WAIT);
  EXPECT_FALSE(Has<CreateDecision>()) << "of an older step, or none";
  EXPECT_EQ(machine_.view().phase, Phase::kIdle);
}

// Whose files name another number of ranks than their attempt has is not whole.
TEST_F(JobTest, ALateCommitIsOfAsManyRanksAsItsAttemptHad) {
  ListOneThatIsNotCommitted(2);
  EXPECT_EQ(Last<CreateManifest>().world_size, 2u);
}

TEST_F(JobTest, ALateCommitIsOfWhatIsStoredWhereNothingElseTells) {
  ListOneThatIsNotCommitted(0);
  EXPECT_EQ(Last<CreateManifest>().world_size, 1u);
}

TEST_F(JobTest, WhatNobodyCanCommitIsPassedOver) {
  for (const ErrorCode code : {ErrorCode::CORRUPT, ErrorCode::NOT_FOUND}) {
    machine_ = Machine(MakeConfig());
    Feed(Started{});
    ListOneThatIsNotCommitted();
    Feed(ManifestCreated{Last<CreateManifest>().op, Error(code, "rank-1.json")});
    EXPECT_EQ(machine_.view().phase, Phase::kGather) << InfoOf(code).name;
  }
}

// As one that a newer ckptd committed: whoever wants to go on without it has to say so.
TEST_F(JobTest, WhatOnlyANewerCkptdCanCommitIsRefused) {
  ListOneThatIsNotCommitted();
  Feed(ManifestCreated{Last<CreateManifest>().op, Error(ErrorCode::NEWER_VERSION, "rank-1.json: format 9 is newer")});
  Rank(v1::RankReport::WAIT);
  EXPECT_FALSE(Has<CreateDecision>());
  ASSERT_EQ(state_->refusals_size(), 1);
  EXPECT_EQ(static_cast<ErrorCode>(state_->refusals(0).code()), ErrorCode::NEWER_VERSION);
}

TEST_F(JobTest, SeenIsPersistedBeforeItIsAnswered) {
  Run();
  auto state = std::make_shared<v1::State>();
  state->set_attempt(9);
  state->set_coordinator("B");
  state->set_user("1000");
  Effects effects;
  machine_.Step(StateReceived{state}, effects);
  ASSERT_GE(effects.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<PersistSeen>(effects[0]));
  EXPECT_EQ(machine_.view().phase, Phase::kStopped);
}

TEST_F(JobTest, ASecondLiveClaimIsRefused) {
  JoinRankZero();
  JoinRankZero(8, 71);
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::RANK_TAKEN);
  EXPECT_THAT(Last<Refuse>().message, HasSubstr("job gpt: rank 0"));
  Feed(Reaped{0, 70});
  JoinRankZero(9, 71);
  EXPECT_FALSE(Has<Refuse>());
}

// Its region may be lost, and with it who opened the job on this node.
TEST_F(JobTest, ABelongingOnTheStorageHoldsForEveryNode) {
  JoinRankZero();
  NewestRead read{Last<ReadNewest>().op, absl::OkStatus(), true, {}, true, {}};
  read.record.set_attempt(3);
  read.record.set_coordinator("B");
  read.record.set_user("1001");
  Feed(read);
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::JOB_OWNED);
  EXPECT_THAT(Last<Refuse>().message, HasSubstr("job gpt belongs to uid 1001 on the storage"));
  EXPECT_FALSE(Has<CreateAttempt>());
}

TEST_F(JobTest, WhoseJobItIsStandsInEachRecord) {
  for (const char* user : {"1000", ""}) {  // the last one's own; an older agent's
    JoinRankZero(user[0] == 0 ? 8 : 7);
    NewestRead read{Last<ReadNewest>().op, absl::OkStatus(), true, {}, true, {}};
    read.record.set_coordinator("B");
    read.record.set_user(user);
    Feed(read);
    ASSERT_TRUE(Has<CreateAttempt>()) << user;
    EXPECT_EQ(Last<CreateAttempt>().record.user(), "1000");
    Feed(AttemptCreated{Last<CreateAttempt>().op, Error(ErrorCode::STORAGE_IO, "x")});
  }
}

TEST_F(JobTest, AStoreThatFailsIsATypedError) {
  JoinRankZero();
  Feed(NewestRead{Last<ReadNewest>().op, Error(ErrorCode::STORAGE_READ_ONLY, "mkdir /x"), false, {}, false, {}});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::STORAGE_READ_ONLY);
  EXPECT_THAT(Last<Refuse>().message, HasSubstr("job gpt"));
}

TEST_F(JobTest, AStoreThatHangsIsNamedWhenTheTimeIsOver) {
  JoinRankZero();
  Feed(TimerFired{TimerKind::kJoin, 7});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::STORAGE_HUNG);
}

TEST_F(JobTest, TheCallThatHangsIsToldToWhoWaits) {
  JoinRankZero();
  Feed(StorageHangs{8, "read /data"});
  EXPECT_FALSE(Has<Refuse>()) << "another one's patience is over";
  Feed(StorageHangs{0, "create /data/gpt/attempts/a0001.json for 1m01s"});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::STORAGE_HUNG);
  EXPECT_EQ(Last<Refuse>().ticket, 7u);
  EXPECT_THAT(Last<Refuse>().message, HasSubstr("create /data/gpt/attempts/a0001.json for 1m01s"));
  Feed(StorageHangs{0, "the same"});
  EXPECT_FALSE(Has<Refuse>()) << "nobody waits any more";
}

TEST_F(JobTest, ARankWithoutRankZeroIsTold) {
  Join join;
  join.rank = 3;
  join.ticket = 33;
  join.process = 1;
  join.world_size = 4;
  Feed(join);
  Feed(TimerFired{TimerKind::kJoin, 33});
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::RANKS_MISSING);
  EXPECT_THAT(Last<Refuse>().message, HasSubstr("rank 0 did not call restore()"));
}

TEST_F(JobTest, DurableIsNotSaidWhenAHigherAttemptExists) {
  Run();
  Rank(v1::RankReport::RUN, {{1, 10}}, {{1, 10}});
  Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 2});
  EXPECT_EQ(machine_.view().phase, Phase::kStopped);
  EXPECT_EQ(state_->durable().step(), 0u);
}

TEST_F(JobTest, AFailedLoadOpensTheNextAttempt) {
  JoinRankZero();
  Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
  Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
  Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
  Rank(v1::RankReport::WAIT);
  const CreateDecision create = Last<CreateDecision>();
  Feed(DecisionCreated{create.op, absl::OkStatus(), create.decision});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  auto report = std::make_shared<v1::RankReport>();
  report->set_seen(1);
  report->set_ticket(7);
  report->set_load(v1::RankReport::FAILED);
  report->set_failure_code(static_cast<uint32_t>(ErrorCode::CORRUPT));
  Feed(RankChanged{report});
  EXPECT_EQ(Last<CreateAttempt>().record.attempt(), 2u);
  EXPECT_EQ(Last<CreateAttempt>().record.rank0_ticket(), 7u);
}

TEST_F(JobTest, AStartedAgentResumesItsAttempt) {
  Machine again(MakeConfig());
  Effects effects;
  again.Step(Started{3, 1}, effects);
  const NewestRead read = ReadDecided(std::get<ReadNewest>(effects.back()).op, "A");
  effects.clear();
  again.Step(read, effects);
  Listed listed;
  listed.op = std::get<List>(effects.back()).op;
  effects.clear();
  again.Step(listed, effects);
  const OpId check = std::get<CheckNewest>(effects.back()).op;
  effects.clear();
  again.Step(NewestChecked{check, absl::OkStatus(), 3}, effects);
  EXPECT_EQ(again.view().phase, Phase::kLoad);
  EXPECT_EQ(again.view().watermark, (SnapshotId{1, 10}));
  EXPECT_EQ(again.view().floor, 1u);
}

// Its region is gone, its trainers are not: nobody else could grant them anything.
TEST_F(JobTest, AnAgentThatHasForgottenTheAttemptOfItsTrainersResumesIt) {
  Feed(Resumed{0, 50, 3});
  const NewestRead read = ReadDecided(Last<ReadNewest>().op, "A");
  Feed(Resumed{1, 51, 3});
  EXPECT_FALSE(Has<ReadNewest>()) << "it is being read";
  Feed(read);
  Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 3});
  EXPECT_EQ(machine_.view().phase, Phase::kLoad);
  EXPECT_EQ(machine_.view().seen, 3u);
  Feed(Resumed{1, 51, 3});
  EXPECT_FALSE(Has<ReadNewest>());
}

TEST_F(JobTest, AnAgentThatHasForgottenAnAttemptOfAnotherOneLeavesItToThat) {
  Feed(Resumed{3, 50, 3});
  Feed(ReadDecided(Last<ReadNewest>().op, "B"));
  EXPECT_EQ(machine_.view().phase, Phase::kIdle);
}

// The attempt was never decided, its ranks are gone, and the next ones ask for something else. Rank 1 is here first.
TEST_F(JobTest, WhoComesBeforeItsRankZeroIsNotMeasuredByTheLastOne) {
  StartOverAnUndecidedAttemptOfTwo();
  v1::Want fresh;
  fresh.set_kind(v1::Want::FRESH);
  Join join;
  join.rank = 1;
  join.ticket = 8;
  join.process = 21;
  join.world_size = 2;
  join.want = fresh;
  Feed(join);
  auto waits = std::make_shared<v1::RankReport>();
  waits->set_rank(1);
  waits->set_seen(3);
  waits->set_ticket(8);
  waits->set_load(v1::RankReport::WAIT);
  Feed(RankChanged{waits});
  EXPECT_TRUE(Has<SendReport>());
  EXPECT_FALSE(Has<Refuse>());
}

// Two ranks of four, and an attempt of two ranks that was never decided: they are not its ranks 0 and 1.
TEST_F(JobTest, RanksOfAnotherWorldSizeAreNoneOfThisOne) {
  StartOverAnUndecidedAttemptOfTwo();
  for (const uint32_t rank : {2u, 3u}) {
    Join join;
    join.rank = rank;
    join.ticket = 10 + rank;
    join.process = 20 + rank;
    join.world_size = 4;
    Feed(join);
    auto waits = std::make_shared<v1::RankReport>();
    waits->set_rank(rank);
    waits->set_seen(3);
    waits->set_ticket(10 + rank);
    waits->set_world_size(4);
    waits->set_load(v1::RankReport::WAIT);
    SetRef({1, 20}, waits->add_sealed());
    Feed(RankChanged{waits});
  }
  EXPECT_FALSE(Has<CreateDecision>());
  EXPECT_FALSE(Has<Refuse>());
}

TEST_F(JobTest, ADamagedDecisionOnStorageIsNoProofForAFreshStart) {
  JoinRankZero();
  NewestRead read{Last<ReadNewest>().op, absl::OkStatus(), true, {}, true, {}};
  read.record.set_attempt(2);
  read.record.set_coordinator("A");
  Feed(read);
  Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
  Feed(Listed{Last<List>().op, absl::OkStatus(), {Decision(2, {{1, 10}})}, {}, {1}});
  Rank(v1::RankReport::WAIT);
  EXPECT_FALSE(Has<CreateDecision>());
  ASSERT_EQ(state_->refusals_size(), 1);
  EXPECT_THAT(state_->refusals(0).message(), testing::HasSubstr("the decision of attempt 1"));
}

// removal.h: rm was killed, and the agent starts again.
TEST_F(JobTest, AnAttemptThatOnlyDeletedIsNotResumed) {
  Machine again(MakeConfig());
  Effects effects;
  again.Step(Started{3, 1}, effects);
  NewestRead read;
  read.op = std::get<ReadNewest>(effects.back()).op;
  read.found = true;
  read.record.set_attempt(4);
  read.record.set_coordinator("A");
  effects.clear();
  again.Step(read, effects);
  EXPECT_TRUE(effects.empty());
  EXPECT_EQ(again.view().phase, Phase::kIdle);
}

}  // namespace
}  // namespace ckptd::job
