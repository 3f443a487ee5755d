// Which steps go, in which order, and on what proof. The storage answers by hand.
#include "daemon/job/deletion.h"

#include <map>
#include <memory>

#include "daemon/base/errors.h"
#include "daemon/format/snapshot_ref.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StoredStep Step(AttemptId attempt, StepId step, bool committed = true) {
  StoredStep stored;
  stored.id = {attempt, step};
  stored.world_size = 2;
  stored.sidecars = committed ? 2 : 1;
  stored.committed = committed;
  return stored;
}

// Attempt 3 runs; it restored step 20 of attempt 1. Attempt 2 was decided too, and left.
class DeletionTest : public testing::Test {
 protected:
  static constexpr AttemptId kAttempt = 3;

  DeletionTest() {
    context_.config.job = "gpt";
    context_.config.retention.keep_last = 2;
    context_.effects = &effects_;
    decision_.set_attempt(kAttempt);
    SetRef({1, 20}, decision_.mutable_parent());
    decision_.add_lineage()->set_attempt(1);
    decision_.mutable_lineage(0)->set_last_step(20);
    deleter_.Reset(kAttempt);
  }

  DeletionFacts Facts() {
    return {steps_,
            decision_,
            {kAttempt, 90},
            [this](const SnapshotId& id) { return sealed_.count(id) != 0; },
            [this](const SnapshotId& id) { return over_.count(id) != 0; }};
  }

  template <typename T>
  const T* Asked() const {
    return effects_.empty() ? nullptr : std::get_if<T>(&effects_.back());
  }

  // Works until there is nothing to do; what was verified and what went, in order.
  void Drain(bool retention = true) {
    for (int i = 0; i < 1000; ++i) {
      effects_.clear();
      deleter_.Work(Facts(), retention, context_);
      if (effects_.empty()) return;
      while (!deleter_.idle()) Answer();
      for (const Effect& effect : effects_) {
        if (const auto* ended = std::get_if<DeleteEnded>(&effect)) ended_.push_back(ended->status);
        if (const auto* timer = std::get_if<StartTimer>(&effect)) timers_.push_back(timer->kind);
      }
    }
    FAIL() << "it never ends";
  }

  void Answer() {
    if (const auto* verify = Asked<VerifyStep>()) {
      verified_.push_back(verify->id);
      const absl::Status status =
          damaged_.count(verify->id) != 0 ? Error(ErrorCode::CORRUPT, "chunk 1") : absl::Status();
      deleter_.On(StepVerified{verify->op, status}, context_);
    } else if (const auto* put = Asked<PutMarker>()) {
      EXPECT_EQ(put->attempt, kAttempt);
      if (const auto failed = unmarkable_.find(put->id); failed != unmarkable_.end()) {
        return void(deleter_.On(MarkerPut{put->op, failed->second}, context_));
      }
      marked_.push_back(put->id);
      deleter_.On(MarkerPut{put->op, absl::OkStatus()}, context_);
    } else if (const auto* check = Asked<CheckNewest>()) {
      deleter_.On(NewestChecked{check->op, absl::OkStatus(), kAttempt}, context_);
    } else if (const auto* gone = Asked<DeleteStep>()) {
      ASSERT_FALSE(marked_.empty());
      EXPECT_EQ(marked_.back(), gone->id);
      if (const auto failed = undeletable_.find(gone->id); failed != undeletable_.end()) {
        return void(deleter_.On(StepDeleted{gone->op, failed->second}, context_));
      }
      gone_.push_back(gone->id);
      const auto id = deleter_.On(StepDeleted{gone->op, absl::OkStatus()}, context_);
      std::erase_if(steps_, [&](const StoredStep& step) { return step.id == *id; });
    } else {
      FAIL() << "nothing was asked";
    }
  }

  absl::Status Request(const SnapshotId& id) {
    effects_.clear();
    deleter_.Request({1, id}, Facts(), context_);
    return effects_.empty() ? absl::OkStatus() : std::get<DeleteEnded>(effects_.back()).status;
  }

  // A step is committed. The steps whose pins are looked at until there is nothing to do; `pinned` is the answer.
  std::vector<SnapshotId> LooksAfter(const StoredStep& step, bool pinned) {
    steps_.push_back(step);
    deleter_.Committed();
    std::vector<SnapshotId> looks;
    for (int i = 0; i < 100; ++i) {
      effects_.clear();
      deleter_.Work(Facts(), true, context_);
      const LookAtPin* look = Asked<LookAtPin>();
      if (effects_.empty()) return looks;
      if (look == nullptr) {
        while (!deleter_.idle()) Answer();
        continue;
      }
      looks.push_back(look->id);
      const auto unpinned = deleter_.On(PinLooked{look->op, absl::OkStatus(), pinned});
      for (StoredStep& each : steps_) each.pinned = each.pinned && each.id != unpinned;
    }
    ADD_FAILURE() << "it never ends";
    return looks;
  }

  Effects effects_;
  Context context_;
  v1::DecisionRecord decision_;
  std::vector<StoredStep> steps_;
  std::set<SnapshotId> sealed_, over_;
  std::set<SnapshotId> damaged_;
  Deleter deleter_;
  std::map<SnapshotId, absl::Status> unmarkable_, undeletable_;
  std::vector<SnapshotId> verified_, marked_, gone_;
  std::vector<absl::Status> ended_;
  std::vector<TimerKind> timers_;
};

// `ckptctl unpin` on another node reaches the storage only.
TEST_F(DeletionTest, APinThatIsGoneIsNoticedAfterACommit) {
  steps_ = {Step(3, 30), Step(3, 40), Step(3, 50), Step(3, 60)};
  for (const size_t pinned : {0, 1, 3}) steps_[pinned].pinned = true;
  EXPECT_THAT(LooksAfter(Step(3, 70), true), ElementsAre(SnapshotId{3, 40}, SnapshotId{3, 30}));
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{3, 50})) << "step 60 is pinned, and kept anyway";
  EXPECT_THAT(LooksAfter(Step(3, 80), false), testing::IsEmpty()) << "not at each";
  deleter_.Rested(TimerKind::kPins);
  EXPECT_THAT(LooksAfter(Step(3, 85), false), ElementsAre(SnapshotId{3, 60}, SnapshotId{3, 40}, SnapshotId{3, 30}));
  EXPECT_THAT(gone_, testing::IsSupersetOf({SnapshotId{3, 30}, SnapshotId{3, 40}, SnapshotId{3, 60}}));
}

TEST_F(DeletionTest, WithoutACommitNoPinIsLookedAt) {
  steps_ = {Step(3, 30), Step(3, 40), Step(3, 50)};
  steps_[0].pinned = true;
  Drain();
  EXPECT_THAT(LooksAfter(Step(3, 60), true), ElementsAre(SnapshotId{3, 30}));
  deleter_.Rested(TimerKind::kPins);
  Drain();
}

// keep_last was lowered from 50 to 2: one step is read back, and 48 go, oldest first.
TEST_F(DeletionTest, ABacklogDrainsBehindOneVerifiedStep) {
  for (StepId step = 30; step <= 520; step += 10) steps_.push_back(Step(3, step));
  context_.config.retention.keep_last = 50;
  Drain();
  EXPECT_TRUE(gone_.empty());
  context_.config.retention.keep_last = 2;
  Drain();
  EXPECT_EQ(gone_.size(), 47u);  // not 90: the watermark
  EXPECT_EQ(gone_.front(), (SnapshotId{3, 30}));
  EXPECT_TRUE(std::is_sorted(gone_.begin(), gone_.end()));
  EXPECT_THAT(verified_, ElementsAre(SnapshotId{3, 520}));
}

// Steps are committed faster than one can be read back: each reading still frees all that is older.
TEST_F(DeletionTest, NewCommitsDoNotAskForANewProof) {
  for (StepId step = 100; step <= 200; step += 10) steps_.push_back(Step(3, step));
  deleter_.Work(Facts(), true, context_);
  while (!deleter_.idle()) {
    Answer();
    steps_.push_back(Step(3, steps_.back().id.step + 10));
  }
  effects_.clear();
  deleter_.Work(Facts(), true, context_);
  ASSERT_NE(Asked<PutMarker>(), nullptr) << "step 200 is good, and newer than what is to go";
  EXPECT_EQ(Asked<PutMarker>()->id, (SnapshotId{3, 100}));
  while (!deleter_.idle()) Answer();
  Drain();
  EXPECT_THAT(verified_, ElementsAre(SnapshotId{3, 200}));
  EXPECT_EQ(steps_.front().id, (SnapshotId{3, 200}));
}

TEST_F(DeletionTest, KeepsEveryMthPinnedParentWatermarkAndTheLast) {
  steps_ = {Step(1, 10), Step(1, 20), Step(1, 15), Step(3, 60), Step(3, 70), Step(3, 90), Step(3, 95), Step(3, 99)};
  steps_[2].pinned = true;
  context_.config.retention.keep_every = 30;
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{1, 10}, SnapshotId{3, 70}));
}

TEST_F(DeletionTest, NothingBehindADamagedStepGoes) {
  steps_ = {Step(3, 30), Step(3, 40), Step(3, 50), Step(3, 60)};
  damaged_ = {{3, 60}};
  Drain();
  EXPECT_THAT(verified_, ElementsAre(SnapshotId{3, 60}, SnapshotId{3, 50}));
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{3, 30}));  // 40 and 50 are the last two good ones
}

// A killed deleter marked step 40 and never came back.
TEST_F(DeletionTest, WhatWasMarkedIsFinishedAndDoesNotCount) {
  steps_ = {Step(3, 30), Step(3, 40), Step(3, 50)};
  steps_[1].marker = 2;
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{3, 40}));
}

TEST_F(DeletionTest, WhatANewerCkptdCommittedIsNeverDeleted) {
  steps_ = {Step(1, 30, false), Step(3, 30, false), Step(3, 40), Step(3, 50), Step(3, 60)};
  steps_[0].newer = steps_[1].newer = true;
  steps_[1].marker = 2;
  context_.config.retention.keep_last = 3;
  Drain();
  EXPECT_TRUE(gone_.empty());
  EXPECT_EQ(CodeOf(Request({3, 30})), ErrorCode::NEWER_VERSION);
}

TEST_F(DeletionTest, AMarkedStepProvesNothing) {
  steps_ = {Step(3, 30), Step(3, 40)};
  steps_[1].marker = 2;
  context_.config.retention.keep_last = 1;
  Drain();
  EXPECT_TRUE(gone_.empty());
  EXPECT_EQ(CodeOf(Request({3, 30})), ErrorCode::REFUSED);
}

// Attempts died before their first commit: what they left goes without a successor, or it would fill the storage.
TEST_F(DeletionTest, RemainsOfDeadAttemptsGoBeforeTheFirstCommit) {
  steps_ = {Step(1, 20), Step(1, 30, false), Step(2, 25, false), Step(2, 26, false), Step(2, 27, false)};
  steps_[2].world_size = steps_[2].sidecars = 0;  // killed between image and sidecar
  steps_[3].sidecars = 2;                         // whole, and never committed: people may want it
  sealed_ = {{2, 27}};                            // its flush still runs
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{1, 30}, SnapshotId{2, 25}));
  EXPECT_TRUE(verified_.empty());
}

TEST_F(DeletionTest, WhatTheRunMayStillCommitIsNotTouched) {
  steps_ = {Step(1, 15, false), Step(1, 20), Step(3, 25, false), Step(3, 30), Step(3, 40)};
  sealed_ = {{1, 15}};  // on the lineage, a late flush
  Drain();
  EXPECT_TRUE(gone_.empty());
  sealed_.clear();
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{1, 15})) << "nobody writes it any more, and newer ones are good";
}

// A rank dropped them when another had written its part, or the storage was full: they would fill it for good.
TEST_F(DeletionTest, RemainsThatNobodyCompletesGoWithoutASuccessor) {
  steps_ = {Step(1, 10), Step(1, 15, false), Step(3, 25, false), Step(3, 35, false), Step(3, 45, false)};
  steps_[4].sidecars = 2;  // whole: the next attempt commits it
  over_ = {{1, 15}, {3, 25}, {3, 45}};
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{1, 15}, SnapshotId{3, 25}));
  EXPECT_TRUE(verified_.empty());
}

TEST_F(DeletionTest, RemainsGoByRequestWhenNobodyCompletesThem) {
  steps_ = {Step(1, 10), Step(3, 25, false), Step(3, 30), Step(3, 35, false)};
  for (const StepId step : {25, 35}) {
    EXPECT_THAT(std::string(Request({3, step}).message()), HasSubstr("is being written: it can go when it is done"));
  }
  over_ = {{3, 25}, {3, 35}};
  ASSERT_TRUE(Request({3, 25}).ok());
  ASSERT_TRUE(Request({3, 35}).ok());
  Drain(/*retention=*/false);
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{3, 25}, SnapshotId{3, 35}));
}

TEST_F(DeletionTest, CommittedStepsOfALeftHistoryGoByRequestOnly) {
  steps_ = {Step(1, 20), Step(2, 30), Step(3, 40), Step(3, 50), Step(3, 60)};
  Drain();
  EXPECT_TRUE(gone_.empty() || gone_.back() != (SnapshotId{2, 30}));
  ASSERT_TRUE(Request({2, 30}).ok());
  Drain(/*retention=*/false);
  EXPECT_EQ(gone_.back(), (SnapshotId{2, 30}));
}

TEST_F(DeletionTest, RefusalsNameTheReasonAndTheNextStep) {
  steps_ = {Step(1, 20), Step(3, 30), Step(3, 40), Step(3, 35, false)};
  steps_[1].pinned = true;
  sealed_ = {{3, 35}};
  EXPECT_THAT(std::string(Request({3, 40}).message()), HasSubstr("last good checkpoint"));
  EXPECT_THAT(std::string(Request({1, 20}).message()), HasSubstr("what the present run goes back to"));
  EXPECT_THAT(std::string(Request({3, 30}).message()), HasSubstr("ckptctl unpin first"));
  EXPECT_THAT(std::string(Request({3, 35}).message()), HasSubstr("being written"));
  EXPECT_EQ(CodeOf(Request({3, 77})), ErrorCode::NOT_FOUND);
}

// Its folder is read-only, say.
TEST_F(DeletionTest, AStepThatCannotBeDeletedHoldsUpNone) {
  steps_ = {Step(3, 30), Step(3, 40), Step(3, 50), Step(3, 60)};
  unmarkable_[{3, 30}] = Error(ErrorCode::PERMISSION, "open /data/step-30/deleting: Permission denied");
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{3, 40}));
  EXPECT_TRUE(deleter_.failure().ok()) << "of one step, not of the storage";
  EXPECT_THAT(std::string(deleter_.undeleted().message()), HasSubstr("job gpt: step 30 cannot be deleted: open /data"));
  EXPECT_THAT(timers_, ElementsAre(TimerKind::kUndeleted));
}

TEST_F(DeletionTest, AStepThatCouldNotBeDeletedIsTriedAgainAfterARest) {
  steps_ = {Step(3, 30), Step(3, 40), Step(3, 50), Step(3, 60)};
  unmarkable_[{3, 30}] = unmarkable_[{3, 40}] = Error(ErrorCode::PERMISSION, "no");
  Drain();
  deleter_.Committed();
  Drain();
  EXPECT_EQ(timers_.size(), 1u) << "told once, for both";
  deleter_.Rested(TimerKind::kUndeleted);
  unmarkable_.erase({3, 40});
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{3, 40})) << "30 alone rests again";
  EXPECT_EQ(timers_.size(), 2u);
  deleter_.Rested(TimerKind::kUndeleted);
  unmarkable_.clear();
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{3, 40}, SnapshotId{3, 30}));
  EXPECT_TRUE(deleter_.undeleted().ok());
}

// The command would wait for its ten minutes.
TEST_F(DeletionTest, WhoAsksForAStepThatCannotBeDeletedHearsWhy) {
  steps_ = {Step(3, 30), Step(3, 40), Step(3, 50), Step(3, 60)};
  unmarkable_[{3, 30}] = Error(ErrorCode::PERMISSION, "open /data/step-30/deleting: Permission denied");
  for (int i = 0; i < 2; ++i) {  // also while the step rests
    ASSERT_TRUE(Request({3, 30}).ok());
    Drain(/*retention=*/false);
    ASSERT_EQ(ended_.size(), 1u + i);
    EXPECT_EQ(CodeOf(ended_.back()), ErrorCode::PERMISSION);
    EXPECT_THAT(std::string(ended_.back().message()), HasSubstr("/data/step-30/deleting"));
  }
  unmarkable_.clear();
  ASSERT_TRUE(Request({3, 30}).ok());
  Drain();
  EXPECT_TRUE(ended_.back().ok()) << ended_.back();
  EXPECT_TRUE(deleter_.undeleted().ok());
}

// Its manifest may be gone: it is no checkpoint any more, and goes whatever is kept.
TEST_F(DeletionTest, AStepWhoseDeletionFailedDoesNotCountAndIsFinished) {
  steps_ = {Step(3, 30), Step(3, 40), Step(3, 50), Step(3, 60)};
  context_.config.retention.keep_last = 3;
  undeletable_[{3, 50}] = Error(ErrorCode::STORAGE_IO, "unlink /data/step-50/rank: Input/output error");
  ASSERT_TRUE(Request({3, 50}).ok());
  Drain();
  EXPECT_EQ(CodeOf(ended_.back()), ErrorCode::STORAGE_IO);
  EXPECT_TRUE(gone_.empty()) << "30, 40 and 60 are the last three";
  undeletable_.clear();
  deleter_.Rested(TimerKind::kUndeleted);
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{3, 50}));
}

// What failed is not the step: all of them wait a moment, and who asked hears it.
TEST_F(DeletionTest, AStorageThatIsFullHoldsUpAll) {
  steps_ = {Step(3, 30), Step(3, 40), Step(3, 50), Step(3, 60)};
  unmarkable_[{3, 30}] = Error(ErrorCode::STORAGE_FULL, "no space");
  ASSERT_TRUE(Request({3, 30}).ok());
  ASSERT_TRUE(Request({3, 40}).ok());
  Drain();
  EXPECT_TRUE(gone_.empty());
  EXPECT_EQ(ended_.size(), 2u);
  EXPECT_THAT(timers_, ElementsAre(TimerKind::kRetry));
  EXPECT_EQ(CodeOf(deleter_.failure()), ErrorCode::STORAGE_FULL);
  unmarkable_.clear();
  deleter_.Retry();
  Drain();
  EXPECT_THAT(gone_, ElementsAre(SnapshotId{3, 30}, SnapshotId{3, 40}));
}

// It is pinned while its successor is read back.
TEST_F(DeletionTest, APinDuringTheProofSavesTheStep) {
  steps_ = {Step(3, 30), Step(3, 40)};
  ASSERT_TRUE(Request({3, 30}).ok());
  deleter_.Work(Facts(), false, context_);
  ASSERT_NE(Asked<VerifyStep>(), nullptr);
  Answer();
  steps_[0].pinned = true;
  effects_.clear();
  deleter_.Work(Facts(), false, context_);
  ASSERT_NE(Asked<DeleteEnded>(), nullptr);
  EXPECT_EQ(CodeOf(Asked<DeleteEnded>()->status), ErrorCode::REFUSED);
}

// The only newer step proves damaged: the request ends with an error instead of waiting for ever.
TEST_F(DeletionTest, ARequestWithoutAGoodSuccessorEnds) {
  steps_ = {Step(3, 30), Step(3, 40)};
  damaged_ = {{3, 40}};
  ASSERT_TRUE(Request({3, 30}).ok());
  deleter_.Work(Facts(), false, context_);
  Answer();
  effects_.clear();
  deleter_.Work(Facts(), false, context_);
  ASSERT_NE(Asked<DeleteEnded>(), nullptr);
  EXPECT_EQ(CodeOf(Asked<DeleteEnded>()->status), ErrorCode::REFUSED);
}

}  // namespace
}  // namespace ckptd::job
