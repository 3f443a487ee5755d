// What is flushed, when, and what a flush holds.
#include "daemon/snapshot/snapshot_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::snapshot {
namespace {

using testing::IsEmpty;

TEST_F(SnapshotTest, ASlowFlushHoldsItsSlot) {
  const OpenGrant first = Run();
  Feed(Bell(first, CaptureState::kComplete, 10));
  const OpenGrant second = All<OpenGrant>().at(0);
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  Feed(Bell(second, CaptureState::kComplete, 20));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 20}, 21)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed);
  EXPECT_THAT(All<OpenGrant>(), IsEmpty()) << "no free slot: saves are dropped";
  Feed(FlushEnded{first.slot, {1, 10}, absl::OkStatus()});
  EXPECT_EQ(All<OpenGrant>().size(), 1u);
}

TEST_F(SnapshotTest, AFailedFlushIsRetriedForWAndGivenUpBehindIt) {
  const OpenGrant first = Run();
  Feed(Bell(first, CaptureState::kComplete, 10));
  const OpenGrant second = All<OpenGrant>().at(0);
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  Feed(FlushEnded{first.slot, {1, 10}, absl::UnavailableError("disk")});
  EXPECT_EQ(All<RetryAt>().size(), 1u);
  EXPECT_THAT(All<StartFlush>(), IsEmpty());
  Feed(RetryTimer{});
  EXPECT_EQ(All<StartFlush>().size(), 1u);
  Feed(Bell(second, CaptureState::kComplete, 20));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 20}, 21)});
  Feed(FlushEnded{first.slot, {1, 10}, absl::UnavailableError("disk")});
  EXPECT_EQ(All<OpenGrant>().size(), 1u) << "a failing storage does not hold the memory of an older step";
}

// A flush reads the slot again, and what it read may be the damage.
TEST_F(SnapshotTest, WhatIsDamagedWhileItIsFlushedIsNotOnStorage) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  ASSERT_EQ(All<StartFlush>().size(), 1u);
  Feed(DamageFound{grant.slot, {1, 10}});
  ASSERT_EQ(All<CancelFlush>().size(), 1u);
  Feed(FlushEnded{grant.slot, {1, 10}, absl::OkStatus()});
  EXPECT_THAT(All<SetPersisted>(), IsEmpty());
  for (const ReportChanged& told : All<ReportChanged>()) EXPECT_EQ(told.report->persisted_size(), 0);
  EXPECT_FALSE(Slot(0).flushing) << "its slot is not held for ever";
}

TEST_F(SnapshotTest, WhatARestartFoundIsCheckedBeforeItIsFlushed) {
  AdoptedSlot found{{1, 0}, SlotStateCode::kSealed, 5, {}, {1, 10}};
  found.unchecked = true;
  Feed(Adopted{1, {found}});
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  EXPECT_THAT(All<StartFlush>(), IsEmpty());
  EXPECT_FALSE(machine_.view().owes_flush);
  Feed(Draining{true});
  EXPECT_TRUE(machine_.view().owes_flush) << "an agent that ends waits for it";
  Feed(Checked{{1, 0}, {1, 9}});
  EXPECT_THAT(All<StartFlush>(), IsEmpty()) << "that was another snapshot's";
  Feed(Checked{{1, 0}, {1, 10}});
  EXPECT_EQ(All<StartFlush>().size(), 1u);
  Feed(FlushEnded{{1, 0}, {1, 10}, absl::OkStatus()});
  EXPECT_FALSE(machine_.view().owes_flush);
}

TEST_F(SnapshotTest, AnAgentThatEndsWaitsForTheNewestStepAlsoWhileTheStorageFails) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  Feed(FlushEnded{grant.slot, {1, 10}, absl::UnavailableError("disk")});
  EXPECT_FALSE(machine_.view().owes_flush);
  Feed(Draining{true});
  EXPECT_TRUE(machine_.view().owes_flush) << "it is tried again when the pause is over";
  Feed(RetryTimer{});
  Feed(FlushEnded{grant.slot, {1, 10}, absl::OkStatus()});
  EXPECT_FALSE(machine_.view().owes_flush);
}

// Back pressure and flush_every: the coordinator chooses what is flushed.
TEST_F(SnapshotTest, OnlyTheChosenStepIsFlushed) {
  const OpenGrant first = Run();
  const auto chosen = [](SnapshotId watermark, SnapshotId target) {
    auto state = std::make_shared<v1::State>(*State(1, v1::State::RUN, {}, watermark, watermark.step + 1));
    state->set_select_flush(true);
    state->mutable_flush()->set_attempt(target.attempt);
    state->mutable_flush()->set_step(target.step);
    return StatePtr(state);
  };
  Feed(JobState{chosen({}, {})});
  EXPECT_FALSE(machine_.flushes_all());
  Feed(Bell(first, CaptureState::kComplete, 10));
  EXPECT_THAT(All<StartFlush>(), IsEmpty());
  const OpenGrant second = All<OpenGrant>().at(0);
  Feed(JobState{chosen({1, 10}, {})});
  EXPECT_THAT(All<StartFlush>(), IsEmpty()) << "captured, not chosen";
  Feed(Bell(second, CaptureState::kComplete, 20));
  Feed(JobState{chosen({1, 20}, {1, 20})});
  ASSERT_EQ(All<StartFlush>().size(), 1u);
  EXPECT_EQ(All<StartFlush>()[0].snapshot, (SnapshotId{1, 20}));
  ASSERT_EQ(All<Superseded>().size(), 1u) << "10 gave its slot up";
  EXPECT_EQ(All<Superseded>()[0].snapshot, (SnapshotId{1, 10}));
  EXPECT_EQ(All<OpenGrant>().size(), 1u) << "and is lent again";
}

// Ranks flush at different speeds: a step is committed when the slowest is done, whatever the others did meanwhile.
TEST_F(SnapshotTest, WhatWasFlushedIsReportedUntilItIsDurable) {
  const OpenGrant first = Run();
  Feed(Bell(first, CaptureState::kComplete, 10));
  const OpenGrant second = All<OpenGrant>().at(0);
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  Feed(FlushEnded{first.slot, {1, 10}, absl::OkStatus()});
  Feed(Bell(second, CaptureState::kComplete, 20));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 20}, 21)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling) << "freed, and lent again";
  EXPECT_THAT(All<Superseded>(), IsEmpty());
  ASSERT_FALSE(All<ReportChanged>().empty());
  ASSERT_EQ(All<ReportChanged>().back().report->persisted_size(), 1);
  EXPECT_EQ(All<ReportChanged>().back().report->persisted(0).step(), 10u);
  auto state = std::make_shared<v1::State>(*State(1, v1::State::RUN, {}, {1, 20}, 21));
  state->mutable_durable()->set_attempt(1);
  state->mutable_durable()->set_step(10);
  Feed(JobState{state});
  EXPECT_EQ(All<ReportChanged>().back().report->persisted_size(), 0);
}

TEST_F(SnapshotTest, AWantedStepIsReported) {
  const OpenGrant grant = Run();
  BellRead bell = Bell(grant, CaptureState::kOpen, 10);
  bell.wanted_attempt = 1;
  bell.wanted = 10;
  Feed(bell);
  ASSERT_FALSE(All<ReportChanged>().empty());
  EXPECT_EQ(All<ReportChanged>().back().report->flush_wanted(), 10u);
  Feed(Bell(grant, CaptureState::kComplete, 10));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  Feed(FlushNewest{});
  EXPECT_EQ(machine_.view().watermark.step, 10u);
}

TEST_F(SnapshotTest, FlushAndDrainWantTheNewest) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  EXPECT_EQ(All<ReportChanged>().back().report->flush_wanted(), 0u);
  Feed(Draining{true});
  EXPECT_EQ(All<ReportChanged>().back().report->flush_wanted(), 10u);
  Feed(Draining{false});
  EXPECT_EQ(All<ReportChanged>().back().report->flush_wanted(), 0u);
  Feed(FlushNewest{});
  EXPECT_EQ(All<ReportChanged>().back().report->flush_wanted(), 10u);
}

TEST_F(SnapshotTest, DrainingLendsNothing) {
  const OpenGrant grant = Run();
  Feed(Draining{true});
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_THAT(All<OpenGrant>(), IsEmpty());
  Feed(Draining{false});
  EXPECT_EQ(All<OpenGrant>().size(), 1u);
}

// Step 10 is on all ranks and in memory only; then an attempt begins that nobody decides.
class UndecidedFlushTest : public SnapshotTest {
 protected:
  OpenGrant Seal() {
    const OpenGrant grant = Run();
    Feed(JobState{Chosen({})});
    Feed(Bell(grant, CaptureState::kComplete, 10));
    return grant;
  }
  OpenGrant Begin() {
    const OpenGrant grant = Seal();
    Feed(JobState{Chosen({1, 10})});
    Feed(Reaped{kProcess});
    Feed(JobState{State(2, v1::State::GATHER)});
    EXPECT_THAT(All<StartFlush>(), IsEmpty()) << "nobody asked for it";
    return grant;
  }
  // Nothing is flushed but what the coordinator chooses, and it chooses nothing.
  static StatePtr Chosen(SnapshotId watermark) {
    auto state = std::make_shared<v1::State>(*State(1, v1::State::RUN, {}, watermark, watermark.step + 1));
    state->set_select_flush(true);
    return state;
  }
};

TEST_F(UndecidedFlushTest, DrainingFlushesWhatWasTheNewest) {
  const OpenGrant grant = Begin();
  Feed(Draining{true});
  EXPECT_TRUE(machine_.view().owes_flush);
  ASSERT_EQ(All<StartFlush>().size(), 1u);
  EXPECT_EQ(All<StartFlush>()[0].snapshot, (SnapshotId{1, 10}));
  Feed(FlushEnded{grant.slot, {1, 10}, absl::OkStatus()});
  EXPECT_FALSE(machine_.view().owes_flush);
  EXPECT_EQ(All<ReportChanged>().back().report->persisted_size(), 1);
}

TEST_F(UndecidedFlushTest, SoDoesAskingForIt) {
  Begin();
  EXPECT_EQ(machine_.view().newest, (SnapshotId{1, 10}));
  EXPECT_FALSE(machine_.view().newest_durable);
  Feed(FlushNewest{});
  EXPECT_EQ(All<StartFlush>().size(), 1u);
}

TEST_F(UndecidedFlushTest, AlsoThroughFurtherAttempts) {
  Begin();
  Feed(JobState{State(3, v1::State::GATHER)});
  EXPECT_EQ(machine_.view().newest, (SnapshotId{1, 10}));
  Feed(FlushNewest{});
  EXPECT_EQ(All<StartFlush>().size(), 1u);
  Feed(JobState{State(4, v1::State::LOAD)});
  EXPECT_TRUE(machine_.view().newest.none()) << "it began afresh";
}

TEST_F(UndecidedFlushTest, NotWhatPerhapsNotAllRanksHave) {
  Seal();
  Feed(Reaped{kProcess});
  Feed(JobState{State(2, v1::State::GATHER)});
  Feed(Draining{true});
  EXPECT_THAT(All<StartFlush>(), IsEmpty());
  EXPECT_FALSE(machine_.view().owes_flush);
}

}  // namespace
}  // namespace ckptd::snapshot
