// Fills that a copier completes for a process that is dead (proto/local/rescue.h).
#include "daemon/snapshot/snapshot_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::snapshot {
namespace {

using testing::IsEmpty;

class SnapshotRescueTest : public SnapshotTest {
 protected:
  // Step 10 is captured; the next slot is lent, and the process has died.
  OpenGrant DieAfter10() {
    Feed(Bell(Run(), CaptureState::kComplete, 10));
    const OpenGrant grant = All<OpenGrant>().at(0);
    Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
    Feed(Died{kProcess});
    EXPECT_THAT(All<SetSlotState>(), IsEmpty()) << "its copier may fill it";
    return grant;
  }
  // `pos` stays at 10: no save() of the process.
  BellRead Rescued(const OpenGrant& grant, StepId step) {
    BellRead read{kProcess, 1, 10, {{grant.slot, grant.epoch, CaptureState::kComplete, step, 0, true}}};
    read.words[0].rescued = true;
    return read;
  }
};

TEST_F(SnapshotRescueTest, AFillOfTheDeadIsSealedAsRescued) {
  Feed(Rescued(DieAfter10(), 14));
  ASSERT_EQ(All<SealSlot>().size(), 1u);
  EXPECT_EQ(All<SealSlot>()[0].snapshot, (SnapshotId{1, 14}));
  EXPECT_EQ(All<SealSlot>()[0].source, Source::kRescued);
  EXPECT_EQ(All<StartFlush>().size(), 1u) << "it becomes durable as any";
  EXPECT_THAT(SealedInReport(), testing::UnorderedElementsAre(10, 14));
  EXPECT_FALSE(All<ReportChanged>().back().report->gone());
  Feed(Reaped{kProcess});
  EXPECT_TRUE(All<ReportChanged>().back().report->gone());
  EXPECT_THAT(SealedInReport(), testing::UnorderedElementsAre(10, 14));
  EXPECT_THAT(All<SetSlotState>(), IsEmpty());
}

// W stays until the rescued step is on all ranks; where it never is, its slot goes.
TEST_F(SnapshotRescueTest, OneThatNotAllRanksHaveIsFreedAndWStays) {
  const OpenGrant grant = DieAfter10();
  Feed(Rescued(grant, 14));
  Feed(Reaped{kProcess});
  Feed(FlushEnded{grant.slot, {1, 14}, absl::OkStatus()});
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 15)});
  EXPECT_EQ(Slot(grant.slot.index).state, SlotStateCode::kFree);
  EXPECT_THAT(SealedInReport(), testing::ElementsAre(10));
}

TEST_F(SnapshotRescueTest, TheNextAttemptIsToldThatItWasRescued) {
  const OpenGrant grant = DieAfter10();
  Feed(Rescued(grant, 14));
  Feed(Reaped{kProcess});
  Feed(Attached{kProcess + 1, kTicket + 1, 0});
  Feed(JobState{State(2, v1::State::GATHER)});
  Feed(JobState{State(2, v1::State::LOAD, {1, 14}, {1, 14}, 1, kTicket + 1)});
  ASSERT_EQ(All<SendLoad>().size(), 1u);
  EXPECT_EQ(All<SendLoad>()[0].slot, grant.slot);
  EXPECT_EQ(All<SendLoad>()[0].source, Source::kRescued);
}

TEST_F(SnapshotRescueTest, ASlotThatIsUsedAgainIsNotRescued) {
  const OpenGrant grant = DieAfter10();
  Feed(Rescued(grant, 14));
  Feed(Reaped{kProcess});
  Feed(FlushEnded{grant.slot, {1, 14}, absl::OkStatus()});
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 15)});
  Feed(Attached{kProcess, kTicket, 1});
  Feed(LayoutChosen{kProcess, 1});
  const OpenGrant again = All<OpenGrant>().at(0);
  ASSERT_EQ(again.slot, grant.slot);
  Feed(Bell(again, CaptureState::kComplete, 20));
  EXPECT_EQ(All<SealSlot>().at(0).source, Source::kRegion);
}

TEST_F(SnapshotRescueTest, TheMarkIsAdopted) {
  AdoptedSlot slot{{1, 0}, SlotStateCode::kSealed, 5, {}, {1, 10}, true};
  slot.rescued = true;
  Feed(Adopted{1, {slot}});
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10})});
  EXPECT_EQ(All<SendLoad>().at(0).source, Source::kRescued);
}

// A new attempt came between, which JOINs wait for no longer than the hold.
TEST_F(SnapshotRescueTest, ItIsTooLateWhenANewAttemptHasBegun) {
  const OpenGrant grant = DieAfter10();
  Feed(JobState{State(2, v1::State::GATHER)});
  Feed(Rescued(grant, 14));
  EXPECT_THAT(All<SealSlot>(), IsEmpty());
}

TEST_F(SnapshotRescueTest, WhatIsNotCompleteIsFreedWhenNobodyWritesAnyMore) {
  const OpenGrant grant = DieAfter10();
  Feed(Bell(grant, CaptureState::kAbandoned, 14));
  EXPECT_EQ(Slot(grant.slot.index).state, SlotStateCode::kFilling) << "without an ack it may still be written";
  Feed(Reaped{kProcess});
  EXPECT_EQ(Slot(grant.slot.index).state, SlotStateCode::kFree);
}

}  // namespace
}  // namespace ckptd::snapshot
