// The life of a rank's slots, case by case: grants, seals, fills that are given up, adoption. The randomised test in
// tests/protocol drives the same machine.
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "daemon/snapshot/snapshot_test_util.h"
#include "daemon/snapshot/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::snapshot {
namespace {

using testing::IsEmpty;

TEST(SnapshotTable, IsWhatTheDocumentSays) {
  const std::string path = CKPTD_TRANSITIONS;
  if (std::getenv("UPDATE") != nullptr) std::ofstream(path) << TableMarkdown();
  std::stringstream committed;
  committed << std::ifstream(path).rdbuf();
  EXPECT_EQ(committed.str(), TableMarkdown()) << "run UPDATE=1 snapshot_test and commit " << path;
}

TEST(SnapshotTable, HasOneRowForEachPair) {
  for (const Row& row : Table()) EXPECT_EQ(&Next(row.from, row.trigger), &row);
}

TEST_F(SnapshotTest, LendsOneSlotAndSealsIt) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  EXPECT_THAT(All<OpenGrant>(), IsEmpty()) << "one fill per rank";
  Feed(Bell(grant, CaptureState::kComplete, 10));
  ASSERT_EQ(All<SealSlot>().size(), 1u);
  EXPECT_EQ(All<SealSlot>()[0].snapshot, (SnapshotId{1, 10}));
  EXPECT_EQ(All<StartFlush>().size(), 1u);
  ASSERT_EQ(All<OpenGrant>().size(), 1u) << "the other slot is lent";
  EXPECT_GT(All<OpenGrant>()[0].epoch, grant.epoch);
  ASSERT_FALSE(All<ReportChanged>().empty());
  EXPECT_EQ(All<ReportChanged>()[0].report->sealed(0).step(), 10u);
}

// One process may make a handle after the other: what it does not use would be its own for as long as it lives.
TEST_F(SnapshotTest, AClosedHandleIsLentNothingAndGivesBackWhatItDidNotUse) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  ASSERT_EQ(All<OpenGrant>().size(), 1u);
  const OpenGrant unused = All<OpenGrant>()[0];
  Feed(Withdrawn{kTicket, true});
  EXPECT_EQ(Slot(1).state, SlotStateCode::kFilling) << "its bell was not read";
  Feed(Bell(unused, CaptureState::kOpen, 0));
  EXPECT_EQ(Slot(1).state, SlotStateCode::kFree);
  EXPECT_THAT(All<OpenGrant>(), IsEmpty());
}

TEST_F(SnapshotTest, WhatAClosedHandleHasBegunMayStillBeSealed) {
  const OpenGrant grant = Run();
  Feed(Withdrawn{kTicket, true});
  Feed(Bell(grant, CaptureState::kOpen, 10));
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed);
  EXPECT_THAT(All<OpenGrant>(), IsEmpty());
  Feed(Attached{kProcess, kTicket, 1});
  EXPECT_EQ(All<OpenGrant>().size(), 1u) << "it speaks again";
}

TEST_F(SnapshotTest, ARefusalThatCrossesItsGoTakesNothingFromWhoRuns) {
  const OpenGrant grant = Run();
  Feed(Withdrawn{kTicket});
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_EQ(All<OpenGrant>().size(), 1u);
}

// It seals nothing more in this attempt, and the next attempt has a process of its own.
TEST_F(SnapshotTest, AReapedRankIsGoneUntilTheNextAttempt) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_FALSE(All<ReportChanged>().back().report->gone());
  Feed(Reaped{kProcess + 1});
  EXPECT_FALSE(All<ReportChanged>().back().report->gone()) << "another process";
  Feed(Reaped{kProcess});
  EXPECT_TRUE(All<ReportChanged>().back().report->gone());
  EXPECT_EQ(All<ReportChanged>().back().report->sealed_size(), 1);
  Feed(Attached{kProcess + 2, kTicket + 1, 0});
  EXPECT_TRUE(All<ReportChanged>().back().report->gone()) << "it waits for another attempt";
  Feed(Reaped{kProcess + 2});
  EXPECT_TRUE(All<ReportChanged>().back().report->gone());
  Feed(JobState{State(2, v1::State::GATHER)});
  EXPECT_FALSE(All<ReportChanged>().back().report->gone());
}

TEST_F(SnapshotTest, AProcessThatEndsInRestoreIsNotGoneFromTheAttempt) {
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(1, v1::State::GATHER)});
  Feed(Reaped{kProcess});
  EXPECT_FALSE(All<ReportChanged>().back().report->gone()) << "its rank may be decided for another process";
}

TEST_F(SnapshotTest, AnotherEpochSealsNothing) {
  OpenGrant grant = Run();
  grant.epoch += 1;
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_THAT(All<SealSlot>(), IsEmpty());
}

TEST_F(SnapshotTest, AnIncompleteChecksumListIsDropped) {
  const OpenGrant grant = Run();
  BellRead bell = Bell(grant, CaptureState::kComplete, 10);
  bell.words[0].crcs_valid = false;
  Feed(bell);
  EXPECT_THAT(All<SealSlot>(), IsEmpty());
  EXPECT_NE(machine_.view().last_error, "");
}

TEST_F(SnapshotTest, AStepBelowTheFloorIsNotSealed) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(JobState{State(1, v1::State::RUN, {}, {}, 11)});
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_THAT(All<SealSlot>(), IsEmpty());
}

TEST_F(SnapshotTest, AnUnusedGrantFollowsTheFloor) {
  Run();
  Feed(JobState{State(1, v1::State::RUN, {}, {}, 5)});
  ASSERT_EQ(All<MoveFloor>().size(), 1u);
  EXPECT_EQ(All<MoveFloor>()[0].floor, 5u);
}

TEST_F(SnapshotTest, KeepsWAndLiveStepsAndFreesTheRest) {
  const OpenGrant first = Run();
  Feed(Bell(first, CaptureState::kComplete, 10));
  const OpenGrant second = All<OpenGrant>().at(0);
  Feed(FlushEnded{first.slot, {1, 10}, absl::OkStatus()});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed) << "not captured everywhere yet";
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed) << "it is W";
  Feed(Bell(second, CaptureState::kComplete, 20));
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed) << "W until the newer one is on all ranks";
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 20}, 21)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling) << "freed, and lent again";
  EXPECT_TRUE(Slot(1).captured);
}

TEST_F(SnapshotTest, NothingIsFreedBetweenANewAttemptAndItsDecision) {
  const OpenGrant first = Run();
  Feed(Bell(first, CaptureState::kComplete, 10));
  Feed(FlushEnded{first.slot, {1, 10}, absl::OkStatus()});
  Feed(JobState{State(2, v1::State::GATHER)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed);
  EXPECT_EQ(machine_.view().fenced_by, 2u);
  Feed(JobState{State(2, v1::State::LOAD, {}, {}, 1, 99)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFree) << "the decision left it";
}

TEST_F(SnapshotTest, AFencedFillIsAbandonedAndWaitsForItsWriter) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(JobState{State(2, v1::State::GATHER)});
  EXPECT_EQ(All<AbandonWord>().size(), 1u);
  Feed(Bell(grant, CaptureState::kAbandoned, 10));
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling) << "the writer may still write";
  BellRead acknowledged = Bell(grant, CaptureState::kAbandoned, 10);
  acknowledged.words[0].ack = grant.epoch;
  Feed(acknowledged);
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFree);
}

TEST_F(SnapshotTest, AWriterThatNeverAnswersCostsAFreshFile) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kAbandoned, 10));
  const OpenGrant other = All<OpenGrant>().at(0);
  Feed(Bell(other, CaptureState::kComplete, 20));
  ASSERT_EQ(All<ReplaceFile>().size(), 1u) << "no slot is free";
  EXPECT_EQ(Slot(0).state, SlotStateCode::kRetired);
  Feed(FileReplaced{grant.slot, absl::ResourceExhaustedError("full")});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kRetired);
  Feed(RetryTimer{});
  EXPECT_EQ(All<ReplaceFile>().size(), 1u);
  Feed(FileReplaced{grant.slot, absl::OkStatus()});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling) << "free, and lent";
}

// The next process does not wait for one that may be stopped.
TEST_F(SnapshotTest, AWriterThatLostTheRankIsNotWaitedFor) {
  const OpenGrant first = Run();
  Feed(Bell(first, CaptureState::kComplete, 10));
  const OpenGrant grant = All<OpenGrant>().at(0);
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  Feed(Attached{kProcess + 1, kTicket + 1, 0});
  Feed(JobState{State(2, v1::State::GATHER)});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10}, 1, kTicket + 1)});
  Feed(Loaded{2, kTicket + 1});
  Feed(JobState{State(2, v1::State::RUN, {1, 10}, {1, 10}, 1, kTicket + 1)});
  Feed(LayoutChosen{kProcess + 1, 1});
  ASSERT_EQ(All<ReplaceFile>().size(), 1u);
  EXPECT_EQ(All<ReplaceFile>()[0].slot, grant.slot);
}

// The agent before lent the only slot that is not needed, and was killed.
TEST_F(SnapshotTest, AnAdoptedGrantIsLentAgainOnceItsWriterAnswers) {
  const OpenGrant grant = RunAdopted();
  Feed(Bell(grant, CaptureState::kOpen, 0));
  EXPECT_EQ(All<AbandonWord>().size(), 1u);
  BellRead bell = Bell(grant, CaptureState::kAbandoned, 0);
  Feed(bell);
  EXPECT_THAT(All<ReplaceFile>(), IsEmpty());
  ASSERT_EQ(All<RetryAt>().size(), 1u);
  Feed(bell);
  EXPECT_THAT(All<RetryAt>(), IsEmpty()) << "asked once";
  bell.words[0].ack = grant.epoch;
  Feed(bell);
  ASSERT_EQ(All<OpenGrant>().size(), 1u);
  EXPECT_EQ(All<OpenGrant>()[0].slot, grant.slot);
}

// Whoever hears that it is in no slot would believe that nobody writes it to storage any more.
TEST_F(SnapshotTest, WhatGetsAFreshFileIsReportedUntilItIsGone) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  const OpenGrant other = All<OpenGrant>().at(0);
  Feed(FlushEnded{grant.slot, {1, 10}, absl::UnavailableError("i/o error")});
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  Feed(ReadPinned{grant.slot, {1, 10}});
  Feed(Bell(other, CaptureState::kComplete, 20));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 20}, 21)});
  ASSERT_EQ(All<ReplaceFile>().size(), 1u) << "no slot is free, and only a reader holds it";
  ASSERT_EQ(All<ReportChanged>().back().report->unsettled_size(), 1);
  EXPECT_EQ(All<ReportChanged>().back().report->unsettled(0).step(), 10u);
  EXPECT_EQ(All<ReportChanged>().back().report->sealed_size(), 1) << "it is not to be counted on";

  Feed(FileReplaced{grant.slot, absl::ResourceExhaustedError("full")});
  EXPECT_EQ(All<ReportChanged>().back().report->unsettled_size(), 0);
  EXPECT_EQ(All<ReportChanged>().back().report->sealed_size(), 2);
}

TEST_F(SnapshotTest, AnAdoptedGrantWhoseWriterNeverAnswersCostsAFreshFile) {
  const OpenGrant grant = RunAdopted();
  Feed(Bell(grant, CaptureState::kAbandoned, 0));
  EXPECT_THAT(All<ReplaceFile>(), IsEmpty());
  Feed(RetryTimer{});
  ASSERT_EQ(All<ReplaceFile>().size(), 1u);
  EXPECT_EQ(All<ReplaceFile>()[0].slot, grant.slot);
}

TEST_F(SnapshotTest, AReapedWriterFreesItsSlots) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(Reaped{kProcess});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFree);
  EXPECT_EQ(All<ReportChanged>().at(0).report->load(), v1::RankReport::NONE);
}

// Its copier may still write: the rank is free at once, what it was filling is not.
TEST_F(SnapshotTest, ADeadWritersSlotsWaitForItsCopiers) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(Died{kProcess});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
  EXPECT_EQ(All<ReportChanged>().back().report->load(), v1::RankReport::NONE);
  EXPECT_EQ(All<ReportChanged>().back().report->fill(), 10u);
  EXPECT_FALSE(All<ReportChanged>().back().report->gone()) << "it may be sealed yet";
  Feed(Reaped{kProcess});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFree);
  EXPECT_TRUE(All<ReportChanged>().back().report->gone());
}

TEST_F(SnapshotTest, WhatACopierCompletesAfterItsTrainersDeathIsSealed) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(Died{kProcess});
  Feed(Bell(grant, CaptureState::kComplete, 10));
  ASSERT_EQ(All<SealSlot>().size(), 1u);
  EXPECT_EQ(All<SealSlot>()[0].snapshot, (SnapshotId{1, 10}));
  Feed(Reaped{kProcess});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed);
}

// The next process joins, and its attempt runs, while a copier of the one before sleeps in the kernel.
TEST_F(SnapshotTest, ASlotIsNotLentAgainBeforeItsWriterIsReaped) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(Died{kProcess});
  Feed(Attached{kProcess + 1, kTicket + 1, 0});
  EXPECT_EQ(All<ReportChanged>().back().report->load(), v1::RankReport::WAIT);
  Feed(JobState{State(2, v1::State::GATHER)});
  ASSERT_EQ(All<AbandonWord>().size(), 1u);
  Feed(Bell(grant, CaptureState::kAbandoned, 10));
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
  Feed(Reaped{kProcess});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFree);
  EXPECT_FALSE(All<ReportChanged>().back().report->gone()) << "of the attempt before";
}

TEST_F(SnapshotTest, ARankIsGoneAlsoWhenAnotherProcessCameFirst) {
  Run();
  Feed(Died{kProcess});
  Feed(Attached{kProcess + 1, kTicket + 1, 0});
  EXPECT_FALSE(All<ReportChanged>().back().report->gone());
  Feed(Reaped{kProcess + 5});
  EXPECT_FALSE(All<ReportChanged>().back().report->gone()) << "another process";
  Feed(Reaped{kProcess});
  EXPECT_TRUE(All<ReportChanged>().back().report->gone());
  EXPECT_EQ(All<ReportChanged>().back().report->load(), v1::RankReport::WAIT);
}

TEST_F(SnapshotTest, AdoptionSealsCompleteAndAbandonsOpen) {
  const Owner owner{1, kTicket, kProcess};
  Feed(Adopted{1,
               {{{1, 0}, SlotStateCode::kFilling, 5, owner, {}, false},
                {{1, 1}, SlotStateCode::kFilling, 6, owner, {}, false}}});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling) << "the bell is not back yet";
  Feed(Attached{kProcess, kTicket, 1});
  Feed(BellRead{kProcess,
                1,
                20,
                {{{1, 0}, 5, CaptureState::kComplete, 10, 0, true}, {{1, 1}, 6, CaptureState::kOpen, 20, 0, false}}});
  EXPECT_EQ(All<SealSlot>().size(), 1u);
  ASSERT_EQ(All<AbandonWord>().size(), 1u);
  EXPECT_EQ(All<AbandonWord>()[0].epoch, 6u);
  EXPECT_THAT(All<OpenGrant>(), IsEmpty()) << "nothing is granted before STATE(seen)";
}

// The new attempt asks for the step while its slot gets a fresh file: it has to come from storage.
TEST_F(SnapshotTest, WhatIsBeingReplacedIsNotLoaded) {
  const SlotId slot = ReplaceUnderReader();
  Feed(Attached{kProcess, 12, 0});
  Feed(JobState{State(2, v1::State::GATHER, {})});
  EXPECT_EQ(SealedInReport(), std::vector<StepId>{20});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10}, 1, 12)});
  EXPECT_THAT(All<SendLoad>(), IsEmpty());
  Feed(FileReplaced{slot, absl::UnavailableError("no memory")});
  EXPECT_EQ(SealedInReport(), (std::vector<StepId>{10, 20})) << "it stays after all";
}

TEST_F(SnapshotTest, AReaderNeverBlocksTheNextSave) {
  const SlotId slot = ReplaceUnderReader();
  EXPECT_EQ(SealedInReport(), std::vector<StepId>{20}) << "a user who rolls back must not be promised what is going";
  Feed(FileReplaced{slot, absl::OkStatus()});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
  Feed(ReadUnpinned{slot, {1, 10}});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
}

TEST_F(SnapshotTest, WhatIsFoundDamagedWhileItIsReplacedIsFreeAfterIt) {
  const SlotId slot = ReplaceUnderReader();
  Feed(DamageFound{slot, {1, 10}});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kQuarantined);
  EXPECT_EQ(All<ReportChanged>().back().report->quarantined_size(), 1);
  Feed(FileReplaced{slot, absl::OkStatus()});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
  Feed(ReadUnpinned{slot, {1, 10}});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
}

// It is not promised again, and its reader still holds up no save.
TEST_F(SnapshotTest, WhatIsFoundDamagedWhileItsReplacementFailsStaysQuarantined) {
  const SlotId slot = ReplaceUnderReader();
  Feed(DamageFound{slot, {1, 10}});
  Feed(FileReplaced{slot, absl::ResourceExhaustedError("full")});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kQuarantined);
  EXPECT_EQ(SealedInReport(), std::vector<StepId>{20});
  EXPECT_THAT(All<ReplaceFile>(), IsEmpty());
  Feed(RetryTimer{});
  ASSERT_EQ(All<ReplaceFile>().size(), 1u);
  Feed(FileReplaced{slot, absl::OkStatus()});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
}

TEST_F(SnapshotTest, WhatIsFoundDamagedWhileItsReplacementFailsIsFreeOnceItsReaderIsDone) {
  const SlotId slot = ReplaceUnderReader();
  Feed(DamageFound{slot, {1, 10}});
  Feed(ReadUnpinned{slot, {1, 10}});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kQuarantined) << "its file is being replaced";
  Feed(FileReplaced{slot, absl::ResourceExhaustedError("full")});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
}

}  // namespace
}  // namespace ckptd::snapshot
