// One agent, and what it deletes: behind a successor that was read back, never a step that is pinned or the last one.
#include <memory>
#include <vector>

#include "daemon/base/errors.h"
#include "daemon/job/machine_test_util.h"
#include "gmock/gmock.h"

namespace ckptd::job {
namespace {

TEST_F(JobTest, RetentionThatChangesIsAppliedAtOnce) {
  StoredStep step;
  step.world_size = step.sidecars = 1;
  step.committed = true;
  std::vector<StoredStep> steps(3, step);
  for (StepId i = 0; i < 3; ++i) steps[i].id = {1, 10 * (i + 1)};
  Feed(RetentionChanged{{3, 0}});
  Run(steps);
  EXPECT_FALSE(Has<VerifyRank>());
  Feed(RetentionChanged{{1, 0}});
  EXPECT_TRUE(Has<VerifyRank>());
}

TEST_F(JobTest, DeletesBehindAVerifiedSuccessorOnly) {
  Run();
  const auto commit = [&](StepId step) {
    Rank(v1::RankReport::RUN, {{1, step}}, {{1, step}});
    Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  };
  commit(10);
  EXPECT_FALSE(Has<VerifyRank>()) << "one step is kept";
  commit(20);
  EXPECT_EQ(Last<VerifyRank>().id, (SnapshotId{1, 20}));
  Feed(RankVerified{Last<VerifyRank>().op, absl::OkStatus()});
  EXPECT_EQ(Last<PutMarker>().id, (SnapshotId{1, 10}));
  Feed(MarkerPut{Last<PutMarker>().op, absl::OkStatus()});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  EXPECT_EQ(Last<DeleteStep>().id, (SnapshotId{1, 10}));
  Feed(StepDeleted{Last<DeleteStep>().op, absl::OkStatus()});
  EXPECT_EQ(machine_.view().stored.size(), 1u);
}

TEST_F(JobTest, APinHoldsAlsoWhenTheStepWasNotOnStorageYet) {
  Run();
  Feed(PinChanged{{1, 10}, true});
  for (const StepId step : {10, 20}) {
    Rank(v1::RankReport::RUN, {{1, step}}, {{1, step}});
    Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  }
  EXPECT_FALSE(Has<VerifyRank>()) << "one step is kept, and the pinned one";
}

// `ckptctl pin` on another node reaches the storage only.
TEST_F(JobTest, WhatTheStorageSaysIsPinnedStays) {
  Run();
  for (const StepId step : {10, 20}) {
    Rank(v1::RankReport::RUN, {{1, step}}, {{1, step}});
    Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  }
  Feed(RankVerified{Last<VerifyRank>().op, absl::OkStatus()});
  Feed(MarkerPut{Last<PutMarker>().op, absl::OkStatus(), true});
  EXPECT_FALSE(Has<DeleteStep>());
  EXPECT_FALSE(Has<PutMarker>()) << "it is not asked for again and again";
  Feed(DeleteRequested{1, {1, 10}});
  EXPECT_THAT(std::string(Last<DeleteEnded>().status.message()), testing::HasSubstr("is pinned: ckptctl unpin first"));
}

TEST_F(JobTest, ADamagedSuccessorDeletesNothing) {
  Run();
  for (const StepId step : {10, 20}) {
    Rank(v1::RankReport::RUN, {{1, step}}, {{1, step}});
    Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  }
  Feed(RankVerified{Last<VerifyRank>().op, Error(ErrorCode::CORRUPT, "chunk 1")});
  EXPECT_FALSE(Has<PutMarker>());
}

TEST_F(JobTest, AStepThatCannotBeDeletedIsToldUntilItIs) {
  Run();
  for (const StepId step : {10, 20}) {
    Rank(v1::RankReport::RUN, {{1, step}}, {{1, step}});
    Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  }
  Feed(RankVerified{Last<VerifyRank>().op, absl::OkStatus()});
  const absl::Status denied = Error(ErrorCode::PERMISSION, "open /data/gpt/step-10/deleting: Permission denied");
  Feed(MarkerPut{Last<PutMarker>().op, denied});
  EXPECT_EQ(Last<StartTimer>().kind, TimerKind::kUndeleted);
  EXPECT_EQ(CodeOf(machine_.view().trouble), ErrorCode::PERMISSION);
  EXPECT_THAT(machine_.view().last_error, testing::HasSubstr("step 10 cannot be deleted: open /data/gpt/step-10"));
  Feed(TimerFired{TimerKind::kRetry, 1});
  EXPECT_FALSE(Has<PutMarker>());
  Feed(TimerFired{TimerKind::kUndeleted, 1});
  Feed(MarkerPut{Last<PutMarker>().op, absl::OkStatus()});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  Feed(StepDeleted{Last<DeleteStep>().op, absl::OkStatus()});
  EXPECT_TRUE(machine_.view().trouble.ok());
  EXPECT_EQ(machine_.view().last_error, "");
}

// The command would wait for its ten minutes.
TEST_F(JobTest, WhoAskedIsToldThatTheJobBeganAnew) {
  Run();
  for (const StepId step : {10, 20}) {
    Rank(v1::RankReport::RUN, {{1, step}}, {{1, step}});
    Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  }
  Feed(DeleteRequested{5, {1, 10}});
  EXPECT_FALSE(Has<DeleteEnded>()) << "step 20 is being read back";
  Feed(Reaped{0, 70});
  JoinRankZero(8, 71);
  EXPECT_TRUE(Has<EndVerification>());
  EXPECT_EQ(Last<DeleteEnded>().request, 5u);
  EXPECT_EQ(CodeOf(Last<DeleteEnded>().status), ErrorCode::REFUSED);
  EXPECT_THAT(std::string(Last<DeleteEnded>().status.message()), testing::HasSubstr("Ask again when it trains"));
}

TEST_F(JobTest, AHigherAttemptEndsWhatIsReadBack) {
  Run();
  for (const StepId step : {10, 20}) {
    Rank(v1::RankReport::RUN, {{1, step}}, {{1, step}});
    Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
    Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  }
  const OpId op = Last<VerifyRank>().op;
  auto state = std::make_shared<v1::State>();
  state->set_attempt(9);
  state->set_coordinator("B");
  state->set_user("1000");
  Feed(StateReceived{state});
  EXPECT_TRUE(Has<EndVerification>());
  Feed(RankVerified{op, Error(ErrorCode::CANCELLED, "read cancelled")});
  EXPECT_FALSE(Has<StartTimer>()) << "nobody waits for it";
}

TEST_F(JobTest, TheLastGoodStepCannotBeRemovedByHand) {
  Run();
  Rank(v1::RankReport::RUN, {{1, 10}}, {{1, 10}});
  Feed(ManifestCreated{Last<CreateManifest>().op, absl::OkStatus()});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 1});
  Feed(DeleteRequested{1, {1, 10}});
  EXPECT_EQ(CodeOf(Last<DeleteEnded>().status), ErrorCode::REFUSED);
  Feed(DeleteRequested{2, {1, 11}});
  EXPECT_EQ(CodeOf(Last<DeleteEnded>().status), ErrorCode::NOT_FOUND);
}

}  // namespace
}  // namespace ckptd::job
