#include "daemon/job/decision.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/job/job_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::job {
namespace {

using testing::HasSubstr;

Inventory TwoRanks() {
  Inventory inventory;
  inventory.job = "gpt";
  inventory.attempt = 2;
  inventory.world_size = 2;
  inventory.decisions = {Decision(1, {}, 2)};
  inventory.sealed.resize(2);
  inventory.answered = {{"A", {7}}};
  return inventory;
}

StoredStep Committed(SnapshotId id) {
  StoredStep step;
  step.id = id;
  step.world_size = step.sidecars = 2;
  step.committed = true;
  return step;
}

std::string CodesOf(const Choice& choice) {
  std::vector<std::string> codes;
  for (const v1::SkippedStep& step : choice.skipped) {
    const char* name = InfoOf(static_cast<ErrorCode>(step.code())).name;
    codes.push_back(step.has_rank() ? absl::StrCat(name, " on rank ", step.rank()) : name);
  }
  return absl::StrJoin(codes, ", ");
}

TEST(Choose, TakesTheNewestThatEveryRankCanGet) {
  Inventory inventory = TwoRanks();
  inventory.sealed[0] = {{1, 20}, {1, 30}};
  inventory.sealed[1] = {{1, 20}};
  inventory.steps = {Committed({1, 10})};
  const auto choice = Choose(inventory, {});
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->parent, (SnapshotId{1, 20}));
  ASSERT_EQ(choice->skipped.size(), 1u);
  EXPECT_THAT(choice->skipped[0].reason(), HasSubstr("ranks 0 only"));
}

TEST(Choose, MemoryOfOneRankAndStorageOfTheOtherAreEnough) {
  Inventory inventory = TwoRanks();
  inventory.sealed[0] = {{1, 20}};
  inventory.steps = {Committed({1, 20})};
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 20}));
}

// To go on from 10 would lose 20: the user has to say so.
TEST(Choose, AStepThatANewerCkptdCommittedIsAnErrorAndNotPassedOver) {
  Inventory inventory = TwoRanks();
  inventory.steps = {Committed({1, 10}), Committed({1, 20})};
  inventory.steps[1].committed = false;
  inventory.steps[1].newer = true;
  const absl::Status refused = Choose(inventory, {}).status();
  EXPECT_EQ(CodeOf(refused), ErrorCode::NEWER_VERSION);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("restore(step=10)"));
  inventory.want.set_kind(v1::Want::STEP);
  inventory.want.set_step(10);
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 10}));
  inventory.want.set_kind(v1::Want::NEWEST);
  inventory.sealed = {{{1, 30}}, {{1, 30}}};
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 30})) << "memory holds a newer one";
  inventory.sealed = {{{1, 20}}, {{1, 20}}};
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 20})) << "memory holds that one";
}

TEST(Choose, NeverLeavesTheLineage) {
  Inventory inventory = TwoRanks();
  inventory.attempt = 4;
  inventory.decisions.push_back(Decision(3, {{1, 10}}, 2));  // somebody rolled back to 10
  inventory.steps = {Committed({1, 10}), Committed({1, 50}), Committed({2, 90})};
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 10}));
}

TEST(Choose, AnExplicitStepIsNeverReplaced) {
  Inventory inventory = TwoRanks();
  inventory.steps = {Committed({1, 10}), Committed({1, 20})};
  inventory.want.set_kind(v1::Want::STEP);
  inventory.want.set_step(10);
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 10}));
  inventory.want.set_step(15);
  const absl::Status status = Choose(inventory, {}).status();
  EXPECT_EQ(CodeOf(status), ErrorCode::NOT_FOUND);
  EXPECT_THAT(std::string(status.message()), HasSubstr("job gpt: step 15"));
}

TEST(Choose, FallsBackBehindAnExcludedStepAndSaysSo) {
  Inventory inventory = TwoRanks();
  inventory.steps = {Committed({1, 10}), Committed({1, 20})};
  inventory.excluded = {{{1, 20}, {ErrorCode::STORAGE_IO, "rank 1: bad chunk 3", 1}}};
  const auto choice = Choose(inventory, {});
  EXPECT_EQ(choice->parent, (SnapshotId{1, 10}));
  EXPECT_THAT(choice->skipped.at(0).reason(), HasSubstr("bad chunk 3"));
  EXPECT_EQ(CodesOf(*choice), "STORAGE_IO on rank 1");
}

// What is nowhere was not damaged: who reads CORRUPT looks for a bad disk.
TEST(Choose, SaysWhetherAPartIsMissingOrDamaged) {
  Inventory inventory = TwoRanks();
  inventory.sealed[0] = {{1, 20}};
  inventory.steps = {Committed({1, 10})};
  EXPECT_EQ(CodesOf(*Choose(inventory, {})), "NOT_FOUND on rank 1");
  inventory.quarantined = {{1, 20}};
  EXPECT_EQ(CodesOf(*Choose(inventory, {})), "CORRUPT on rank 1");
  inventory.sealed[0].clear();
  inventory.quarantined.clear();
  inventory.elsewhere = {{{1, 20}, "B"}};
  EXPECT_EQ(CodesOf(*Choose(inventory, {})), "NOT_FOUND") << "both ranks lack it";
  inventory.steps.push_back(Committed({1, 20}));
  inventory.want.set_kind(v1::Want::STEP);
  inventory.want.set_step(10);
  EXPECT_EQ(CodesOf(*Choose(inventory, {})), "REFUSED");
}

TEST(Choose, SaysWhosePartsAreLostWhereThatIsKnown) {
  Inventory inventory = TwoRanks();
  inventory.copied.resize(2);
  inventory.sealed[0] = {{1, 20}};
  inventory.steps = {Committed({1, 10})};
  inventory.losses[{1, 20}] = "rank 1: its node B and its holder C are gone";
  const auto choice = Choose(inventory, {});
  ASSERT_EQ(choice->skipped.size(), 1u);
  EXPECT_EQ(choice->skipped[0].reason(),
            "not committed, and in the memory of 1 of 2 ranks: rank 1: its node B and its holder C are gone");
  inventory.steps.clear();
  inventory.answered.clear();
  EXPECT_THAT(std::string(Choose(inventory, {}).status().message()),
              HasSubstr("; step 20.a1: not committed, and in the memory of 1 of 2 ranks: rank 1: its node B and"));
}

TEST(Choose, ManyRanksAreNotAllNamed) {
  Inventory inventory = TwoRanks();
  inventory.world_size = 5000;
  inventory.decisions = {Decision(1, {}, 5000)};
  inventory.sealed.resize(5000);
  for (Rank rank = 1; rank < 5000; ++rank) inventory.sealed[rank] = {{1, 20}};
  inventory.steps = {Committed({1, 10})};
  const auto choice = Choose(inventory, {});
  ASSERT_EQ(choice->skipped.size(), 1u);
  EXPECT_THAT(choice->skipped[0].reason(), HasSubstr(",32 and 4967 more only (of 5000)"));
}

TEST(Choose, MarkedStepsAreNotThere) {
  Inventory inventory = TwoRanks();
  inventory.steps = {Committed({1, 10}), Committed({1, 20})};
  inventory.steps[1].marker = 1;
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 10}));
}

// A deleter that has looked already deletes what the run would flush again.
TEST(Choose, MarkedStepsAreNotTakenFromMemoryEither) {
  Inventory inventory = TwoRanks();
  inventory.sealed = {{{1, 10}, {1, 20}}, {{1, 10}, {1, 20}}};
  inventory.steps = {Committed({1, 10}), Committed({1, 20})};
  inventory.steps[0].marker = 1;
  inventory.want.set_kind(v1::Want::STEP);
  inventory.want.set_step(10);
  const absl::Status refused = Choose(inventory, {}).status();
  EXPECT_EQ(CodeOf(refused), ErrorCode::NOT_FOUND);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("being deleted"));
  inventory.decisions.push_back(Decision(2, {{1, 10}}, 2));
  inventory.attempt = 3;
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 10})) << "a run chose it after the marker: that is void";
}

TEST(Choose, AFreshStartNeedsProof) {
  Inventory inventory = TwoRanks();
  EXPECT_TRUE(Choose(inventory, {})->parent.none()) << "all agents answered, nothing exists";
  inventory.answered.clear();
  EXPECT_THAT(std::string(Choose(inventory, {}).status().message()), HasSubstr("no answer from agents A"));
  inventory.answered = {{"A", {8}}};
  inventory.sealed[0] = {{1, 20}};
  EXPECT_THAT(std::string(Choose(inventory, {}).status().message()), HasSubstr("20.a1")) << "another region: lost?";
  inventory.answered = {{"A", {7}}};
  EXPECT_TRUE(Choose(inventory, {})->parent.none()) << "rank 1 has no part in a region that was never lost";
  inventory.quarantined = {{1, 20}};
  EXPECT_FALSE(Choose(inventory, {}).ok()) << "it had one";
  inventory.quarantined.clear();
  inventory.sealed[0].clear();
  inventory.elsewhere = {{{1, 20}, "B"}};
  EXPECT_THAT(std::string(Choose(inventory, {}).status().message()), HasSubstr("agent B"));
  inventory.elsewhere.clear();
  inventory.excluded = {{{1, 20}, {ErrorCode::CORRUPT, "bad", {}}}};
  EXPECT_FALSE(Choose(inventory, {}).ok());
  inventory.excluded.clear();
  EXPECT_TRUE(Choose(inventory, {}).ok());
  inventory.answered = {{"A", {7, 1}}};
  EXPECT_THAT(std::string(Choose(inventory, {}).status().message()), HasSubstr("found damaged by agents A"));
  inventory.sealed[0] = {{1, 20}};
  EXPECT_FALSE(Choose(inventory, {}).ok()) << "rank 1 may have had the part that was destroyed";
  inventory.sealed[0].clear();
  inventory.decisions[0].set_attempt(2);
  EXPECT_TRUE(Choose(inventory, {}).ok()) << "that was before the history began";
  inventory.decisions[0].set_attempt(1);
  inventory.want.set_kind(v1::Want::FRESH);
  EXPECT_TRUE(Choose(inventory, {})->parent.none());
}

TEST(Choose, AnotherWorldSizeIsNamed) {
  Inventory inventory = TwoRanks();
  inventory.world_size = 4;
  inventory.sealed.resize(4);
  inventory.steps = {Committed({1, 10})};
  const absl::Status status = Choose(inventory, {}).status();
  EXPECT_EQ(CodeOf(status), ErrorCode::LAYOUT_MISMATCH);
  EXPECT_THAT(std::string(status.message()), HasSubstr("world size 2"));
}

// Ranks 0 and 1 of four look like both ranks of two.
TEST(Choose, OfAnAttemptWhoseDecisionIsDamagedTheWorldSizeMustBeKnown) {
  Inventory inventory = TwoRanks();
  inventory.attempt = 4;
  inventory.decisions.push_back(Decision(3, {{2, 20}, {1, 10}}, 2));
  inventory.sealed = {{{2, 20}}, {{2, 20}}};
  inventory.steps = {Committed({1, 10})};
  inventory.unreadable = {2};
  const auto choice = Choose(inventory, {});
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->parent, (SnapshotId{1, 10}));
  EXPECT_EQ(CodesOf(*choice), "CORRUPT");
  EXPECT_THAT(choice->skipped.at(0).reason(), HasSubstr("the decision of attempt 2 is damaged"));
  inventory.steps.push_back(Committed({2, 15}));
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{2, 20})) << "what it committed tells";
  inventory.steps.back().world_size = 4;
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 10}));
}

TEST(Choose, OfAnAttemptWhoseDecisionIsPrunedTheLineageTellsTheWorldSize) {
  Inventory inventory = TwoRanks();
  inventory.attempt = 4;
  inventory.decisions = {Decision(3, {{2, 20}, {1, 10}}, 2)};
  inventory.sealed = {{{2, 20}}, {{2, 20}}};
  inventory.steps = {Committed({1, 10})};
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 10})) << "else ranks of another world may be taken";
  EXPECT_THAT(Choose(inventory, {})->skipped.at(0).reason(), HasSubstr("the decision of attempt 2 is gone"));
  inventory.decisions[0].mutable_lineage(0)->set_world_size(4);
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{1, 10}));
  inventory.decisions[0].mutable_lineage(0)->set_world_size(2);
  EXPECT_EQ(Choose(inventory, {})->parent, (SnapshotId{2, 20}));
}

// With copies, owners of then may have freed a parent that others took from them.
TEST(Choose, AParentWasCapturedAlsoWhereItsDecisionIsPruned) {
  Inventory inventory = TwoRanks();
  inventory.attempt = 4;
  inventory.decisions.push_back(Decision(3, {{1, 10}}, 2));
  inventory.sealed = {{{1, 10}}, {}};
  inventory.copied.resize(2);
  inventory.decisions.push_back(Decision(2, {{1, 10}}, 2));
  EXPECT_EQ(CodeOf(Choose(inventory, {}).status()), ErrorCode::RESTORE_FAILED);
  inventory.decisions.pop_back();
  inventory.decisions.back().clear_parent();  // rolled back since: only the lineage names it
  EXPECT_EQ(CodeOf(Choose(inventory, {}).status()), ErrorCode::RESTORE_FAILED);
}

// It may have gone on from a step that is nowhere any more.
TEST(Choose, ADamagedDecisionIsNoProofForAFreshStart) {
  Inventory inventory = TwoRanks();
  inventory.attempt = 4;
  inventory.decisions.push_back(Decision(3, {{1, 10}}, 2));
  EXPECT_TRUE(Choose(inventory, {})->parent.none());
  inventory.unreadable = {2};
  const absl::Status status = Choose(inventory, {}).status();
  EXPECT_EQ(CodeOf(status), ErrorCode::RESTORE_FAILED);
  EXPECT_THAT(std::string(status.message()), HasSubstr("damaged on storage: the decision of attempt 2"));
}

TEST(Choose, AFirstSaveWithoutRestoreIsRefusedWhenSomethingExists) {
  Inventory inventory = TwoRanks();
  inventory.want.set_kind(v1::Want::IMPLICIT);
  EXPECT_TRUE(Choose(inventory, {}).ok());
  inventory.steps = {Committed({1, 10})};
  EXPECT_EQ(CodeOf(Choose(inventory, {}).status()), ErrorCode::NOT_RESTORED);
}

}  // namespace
}  // namespace ckptd::job
