#include "daemon/job/pruning.h"

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/job/decision.h"
#include "daemon/job/job_test_util.h"
#include "daemon/job/lineage.h"
#include "daemon/job/machine_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

StoredStep Stored(SnapshotId id, AttemptId marker = 0) {
  StoredStep step;
  step.id = id;
  step.world_size = step.sidecars = 2;
  step.committed = true;
  step.marker = marker;
  return step;
}

// Attempt 1 began; each later one went on from step 10 of the one before, as `history[attempt - 1]`.
std::vector<v1::DecisionRecord> Restarted(AttemptId attempts, int ranks = 2) {
  std::vector<v1::DecisionRecord> history{Decision(1, {}, ranks)};
  for (AttemptId attempt = 2; attempt <= attempts; ++attempt) {
    v1::DecisionRecord next = Decision(attempt, {}, ranks);
    SetParent(history.back(), {attempt - 1, 10}, &next);
    history.push_back(next);
  }
  return history;
}

TEST(Pruning, OfManyRestartsTheParentStays) {
  const auto history = Restarted(6);
  EXPECT_THAT(NeedlessDecisions(history[5], history, {}), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(NeedlessDecisions(history[0], history, {}), IsEmpty());
  EXPECT_THAT(NeedlessDecisions(history[2], history, {}), ElementsAre(1)) << "nothing above its own";
}

TEST(Pruning, AnAttemptWithStepsOnStorageStays) {
  const auto history = Restarted(6);
  EXPECT_THAT(NeedlessDecisions(history[5], history, {Stored({2, 5})}), ElementsAre(1, 3, 4));
}

// 3, 4 and 5 all went back to the same step.
TEST(Pruning, OfThoseThatChoseAStepTheHighestStays) {
  auto history = Restarted(2);
  for (AttemptId attempt = 3; attempt <= 7; ++attempt) {
    v1::DecisionRecord next = Decision(attempt, {}, 2);
    SetParent(history[1], attempt <= 5 ? SnapshotId{1, 10} : SnapshotId{2, 10}, &next);
    history.push_back(next);
  }
  EXPECT_THAT(NeedlessDecisions(history[6], history, {Stored({1, 10}, 4)}), ElementsAre(3, 4, 6));
  EXPECT_THAT(NeedlessDecisions(history[6], history, {Stored({2, 10})}), ElementsAre(1, 3, 4, 5, 6))
      << "its own is the highest";
}

TEST(Pruning, WhoseWorldOnlyItsOwnDecisionTellsStays) {
  auto history = Restarted(5);
  history[4].mutable_lineage(2)->clear_world_size();  // of attempt 2
  EXPECT_THAT(NeedlessDecisions(history[4], history, {}), ElementsAre(1, 3));
  FillWorlds(history, &history[4]);
  EXPECT_EQ(WorldIn(history[4], 2), 2u);
  EXPECT_THAT(NeedlessDecisions(history[4], history, {}), ElementsAre(1, 2, 3));
}

// Histories with roll-backs, fresh starts and other world sizes; what is asked of them next is answered the same
// whatever part of the needless is gone.
struct History {
  std::vector<v1::DecisionRecord> decisions;
  std::vector<StoredStep> steps;

  explicit History(std::minstd_rand* random) {
    for (AttemptId attempt = 1; attempt <= 8; ++attempt) {
      v1::DecisionRecord next = Decision(attempt, {}, (*random)() % 8 == 0 ? 4 : 2);
      std::vector<SnapshotId> parents{SnapshotId()};
      for (StepId step = 10; step <= 30; step += 10) {
        for (AttemptId past = 1; past < attempt; ++past) {
          if (OnLineage(decisions.back(), {past, step})) parents.push_back({past, step});
        }
      }
      if (attempt > 1) SetParent(decisions.back(), parents[(*random)() % parents.size()], &next);
      decisions.push_back(next);
      for (StepId step = 10; step <= 30; step += 10) {
        if ((*random)() % 3 == 0) steps.push_back(Stored({attempt, step}, (*random)() % 3 == 0 ? (*random)() % 9 : 0));
      }
    }
    for (StoredStep& step : steps)
      step.world_size = step.sidecars = WorldIn(decisions[step.id.attempt - 1], step.id.attempt);
  }
};

std::string AnswerOf(const Inventory& inventory) {
  const auto choice = Choose(inventory, {});
  return choice.ok() ? ToString(choice->parent) : absl::StrCat(choice.status().code());
}

TEST(Pruning, NoAnswerChanges) {
  std::minstd_rand random(1);
  size_t pruned = 0;
  size_t taken = 0;
  for (int round = 0; round < 3000; ++round) {
    const History history(&random);
    Inventory whole;
    whole.job = "gpt";
    whole.attempt = 9;
    whole.world_size = 2;
    whole.decisions = history.decisions;
    whole.steps = history.steps;
    whole.answered = {{"A", {7}}};
    whole.sealed.resize(2);
    if (random() % 2 == 0) whole.copied.resize(2);
    const SnapshotId held{1 + random() % 8, 10 + random() % 3 * 10};  // in memory, perhaps of one rank only
    for (size_t rank = 0; rank < 1 + random() % 2; ++rank) whole.sealed[rank].insert(held);
    if (random() % 4 == 0) whole.want.set_kind(v1::Want::STEP);
    whole.want.set_step(10);
    Inventory rest = whole;
    const auto needless = NeedlessDecisions(history.decisions.back(), history.decisions, history.steps);
    std::erase_if(rest.decisions, [&](const v1::DecisionRecord& decision) {
      const bool goes = random() % 4 != 0 && std::count(needless.begin(), needless.end(), decision.attempt()) != 0;
      pruned += goes ? 1 : 0;
      return goes;
    });
    // What nobody can tell any more of parts in memory makes an error out of a fresh start, never the other way round.
    const bool from_nothing = AnswerOf(whole) == ToString(SnapshotId());
    const bool same = AnswerOf(rest) == AnswerOf(whole);
    ASSERT_TRUE(same || (from_nothing && !Choose(rest, {}).ok())) << AnswerOf(rest) << " " << AnswerOf(whole) << round;
    taken += Choose(whole, {}).ok() && !from_nothing ? 1 : 0;
    for (const StoredStep& step : history.steps) {
      ASSERT_EQ(MarkerHolds(step, rest.decisions), MarkerHolds(step, whole.decisions)) << round;
    }
  }
  EXPECT_GT(pruned, 3000u);
  EXPECT_GT(taken, 1000u);
}

TEST_F(JobTest, WhatNobodyNeedsIsPrunedWhenAllHaveLoaded) {
  JoinRankZero();
  NewestRead read{Last<ReadNewest>().op, absl::OkStatus(), true, {}, true, {}};
  read.record.set_attempt(4);
  read.record.set_coordinator("B");
  Feed(read);
  Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
  const std::vector<v1::DecisionRecord> history = Restarted(4, 1);
  StoredStep step = Stored({4, 10});
  step.world_size = step.sidecars = 1;
  Feed(Listed{Last<List>().op, absl::OkStatus(), history, {step}, {}, 5});
  Rank(v1::RankReport::WAIT);
  const CreateDecision create = Last<CreateDecision>();
  EXPECT_EQ(create.decision.lineage(3).world_size(), 1u);
  Feed(DecisionCreated{create.op, absl::OkStatus(), create.decision});
  Feed(NewestChecked{Last<CheckNewest>().op, absl::OkStatus(), 5});
  Rank(v1::RankReport::WAIT);
  EXPECT_FALSE(Has<PruneRecords>()) << "the next attempt may be this one's again";
  Rank(v1::RankReport::LOADED);
  ASSERT_TRUE(Has<PruneRecords>());
  EXPECT_EQ(Last<PruneRecords>().attempt, 5u);
  EXPECT_THAT(Last<PruneRecords>().decisions, ElementsAre(1, 2, 3));
  const OpId op = Last<PruneRecords>().op;
  Rank(v1::RankReport::RUN);
  EXPECT_FALSE(Has<PruneRecords>()) << "once";
  Feed(RecordsPruned{op, absl::OkStatus(), 5});
  EXPECT_EQ(machine_.view().phase, Phase::kRun);
  Feed(RecordsPruned{op, absl::OkStatus(), 6});
  EXPECT_EQ(machine_.view().phase, Phase::kStopped) << "fenced";
}

// Its create hung while others opened higher attempts, and pruned the name that it has now.
TEST_F(JobTest, ARecordThatIsCreatedBelowTheNewestCountsForNothing) {
  JoinRankZero();
  Feed(NewestRead{Last<ReadNewest>().op, absl::OkStatus(), false, {}, false, {}});
  Feed(AttemptCreated{Last<CreateAttempt>().op, absl::OkStatus()});
  Feed(Listed{Last<List>().op, absl::OkStatus(), {}, {}, {}, 2});
  EXPECT_EQ(machine_.view().phase, Phase::kStopped);
  EXPECT_EQ(Last<Refuse>().code, ErrorCode::FENCED);
}

}  // namespace
}  // namespace ckptd::job
