// A layout that takes the place of another, and memory that is given up for it.
#include "daemon/snapshot/snapshot_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::snapshot {
namespace {

using testing::IsEmpty;

TEST_F(SnapshotTest, OldLayoutsGoWhenTheNewOneHoldsW) {
  const OpenGrant old = Run();
  Feed(Bell(old, CaptureState::kComplete, 10));
  const OpenGrant unused = All<OpenGrant>().at(0);
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  Feed(FlushEnded{old.slot, {1, 10}, absl::OkStatus()});
  Feed(LayoutAdded{2, 2});
  Feed(LayoutChosen{kProcess, 2});
  EXPECT_EQ(All<AbandonWord>().size(), 1u) << "the grant of the old layout";
  BellRead bell = Bell(unused, CaptureState::kAbandoned, 0);
  bell.words[0].ack = unused.epoch;
  Feed(bell);
  const OpenGrant grant = {{2, 0}, unused.epoch + 1, 11, unused.owner};
  EXPECT_EQ(Slot(0, 2).epoch, grant.epoch);
  Feed(Bell(grant, CaptureState::kComplete, 20));
  EXPECT_THAT(All<RemoveLayout>(), IsEmpty());
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 20}, 21)});
  EXPECT_EQ(All<RemoveLayout>().size(), 1u);
  EXPECT_EQ(machine_.view().slots.size(), 2u);
}

TEST_F(SnapshotTest, ALayoutGivesUpWhatIsFreeForTheNext) {
  const OpenGrant first = Run();
  Feed(Bell(first, CaptureState::kComplete, 10));
  const OpenGrant unused = All<OpenGrant>().at(0);
  Feed(RoomNeeded{true});
  EXPECT_EQ(All<AbandonWord>().size(), 1u) << "the grant that was not used";
  EXPECT_THAT(All<DropFile>(), IsEmpty()) << "its writer has not answered";
  BellRead bell = Bell(unused, CaptureState::kAbandoned, 0);
  bell.words[0].ack = unused.epoch;
  Feed(bell);
  ASSERT_EQ(All<DropFile>().size(), 1u);
  EXPECT_EQ(All<DropFile>()[0].slot, unused.slot);
  EXPECT_EQ(Slot(1).state, SlotStateCode::kRetired);
  EXPECT_THAT(All<OpenGrant>(), IsEmpty());
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed) << "live";
  Feed(FlushEnded{first.slot, {1, 10}, absl::OkStatus()});
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed) << "W";
  Feed(LayoutAdded{2, 2});
  EXPECT_THAT(All<DropFile>(), IsEmpty()) << "not of the layout that the room is for";
  Feed(LayoutChosen{kProcess, 2});
  ASSERT_EQ(All<OpenGrant>().size(), 1u);
  EXPECT_EQ(All<OpenGrant>()[0].slot.layout, 2u);
}

TEST_F(SnapshotTest, OnceItHasMovedOnItGivesUpWhatIsFreeForOtherRanks) {
  const OpenGrant first = Run();
  Feed(OthersNeedRoom{true});
  EXPECT_THAT(All<AbandonWord>(), IsEmpty());
  EXPECT_THAT(All<DropFile>(), IsEmpty()) << "it saves into this layout";
  Feed(LayoutAdded{2, 2});
  Feed(LayoutChosen{kProcess, 2});
  BellRead bell = Bell(first, CaptureState::kAbandoned, 0);
  bell.words[0].ack = first.epoch;
  Feed(bell);
  std::set<uint32_t> layouts;
  for (const DropFile& drop : All<DropFile>()) layouts.insert(drop.slot.layout);
  EXPECT_THAT(layouts, testing::ElementsAre(1u));
  EXPECT_EQ(All<OpenGrant>().at(0).slot.layout, 2u);
}

// The process has moved on to layout 2, and its bell of layout 1 is lost: it may still write there.
TEST_F(SnapshotTest, AFillOfTheAgentBeforeDoesNotKeepALayoutThatIsLeft) {
  const OpenGrant lost = {{1, 1}, 6, 0, {1, kTicket, kProcess}};
  Feed(Adopted{1,
               {{{1, 0}, SlotStateCode::kSealed, 5, {}, {1, 10}, true},
                {lost.slot, SlotStateCode::kFilling, lost.epoch, lost.owner, {}, false},
                {{2, 0}, SlotStateCode::kFree, 0, {}, {}, false},
                {{2, 1}, SlotStateCode::kFree, 0, {}, {}, false}}});
  Feed(Attached{kProcess, kTicket, 1});
  Feed(LayoutChosen{kProcess, 2});
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  EXPECT_THAT(All<OpenGrant>(), IsEmpty());
  Feed(Bell(lost, CaptureState::kAbandoned, 0));
  ASSERT_EQ(All<OpenGrant>().size(), 1u);
  const OpenGrant grant = All<OpenGrant>()[0];
  EXPECT_EQ(grant.slot.layout, 2u);
  EXPECT_EQ(All<RetryAt>().size(), 1u) << "its writer may answer";
  EXPECT_EQ(Slot(1).state, SlotStateCode::kFilling);
  Feed(RetryTimer{});
  EXPECT_EQ(Slot(1).state, SlotStateCode::kRetired) << "never free";
  EXPECT_THAT(All<ReplaceFile>(), IsEmpty()) << "nobody saves into this layout";
  Feed(Bell(grant, CaptureState::kComplete, 20));
  EXPECT_THAT(All<RemoveLayout>(), IsEmpty()) << "it holds W";
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 20}, 21)});
  EXPECT_EQ(All<RemoveLayout>().size(), 1u);
}

TEST_F(SnapshotTest, ACaptureUnderWayEndsBeforeItsSlotMakesRoom) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(RoomNeeded{true});
  EXPECT_THAT(All<AbandonWord>(), IsEmpty());
  ASSERT_EQ(All<DropFile>().size(), 1u);
  EXPECT_EQ(All<DropFile>()[0].slot.index, 1u);
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_EQ(All<SealSlot>().size(), 1u);
  Feed(JobState{State(1, v1::State::RUN, {}, {}, 11)});  // another rank passed it
  EXPECT_THAT(All<DropFile>(), IsEmpty()) << "being flushed";
  Feed(FlushEnded{grant.slot, {1, 10}, absl::CancelledError()});
  EXPECT_EQ(All<DropFile>().size(), 1u);
}

TEST_F(SnapshotTest, ASlotThatMadeRoomGetsNoFileAgain) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(RoomNeeded{true});
  Feed(RoomNeeded{false});
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_THAT(All<ReplaceFile>(), IsEmpty());
  EXPECT_THAT(All<OpenGrant>(), IsEmpty());
}

TEST_F(SnapshotTest, AnOldLayoutThatIsReadFromStorageStays) {
  Run();
  Feed(LayoutAdded{4, 2});
  Feed(LayoutChosen{kProcess, 4});
  Feed(Attached{kProcess, kTicket + 1, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 70}, {1, 70}, 1, kTicket + 1)});
  Feed(LayoutAdded{2, 2});
  EXPECT_THAT(All<RemoveLayout>(), IsEmpty());
  Feed(LayoutFound{{1, 70}, 2, absl::OkStatus()});
  EXPECT_EQ(All<Fetch>().size(), 1u);
}

// The layout of what an attempt before wanted is found when the present one needs nothing.
TEST_F(SnapshotTest, WhatAnAttemptBeforeWantedKeepsNoMemory) {
  Run();
  Feed(Attached{kProcess, kTicket + 1, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 70}, {1, 70}, 1, kTicket + 1)});
  EXPECT_EQ(All<FindLayout>().size(), 1u);
  Feed(Attached{kProcess, kTicket + 2, 0});
  Feed(JobState{State(3, v1::State::LOAD, {}, {}, 1, kTicket + 2)});
  Feed(LayoutFound{{1, 70}, 1, absl::OkStatus()});
  Feed(Loaded{3, kTicket + 2});
  Feed(RoomNeeded{true});
  EXPECT_FALSE(All<DropFile>().empty());
}

// Step 10 is captured and on storage, the process is dead, and the next attempt gives the rank to another agent.
class LeftRankTest : public SnapshotTest {
 protected:
  OpenGrant Leave() {
    const OpenGrant grant = Run();
    Feed(Bell(grant, CaptureState::kComplete, 10));
    Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
    Feed(FlushEnded{grant.slot, {1, 10}, absl::OkStatus()});
    Feed(Reaped{kProcess});
    Feed(JobState{Elsewhere(v1::State::GATHER, {})});
    return grant;
  }
  static StatePtr Elsewhere(v1::State::Phase phase, SnapshotId watermark) {
    return State(2, phase, {1, 10}, watermark, 1, kTicket + 1, "there");
  }
};

TEST_F(LeftRankTest, ItGivesUpWhatIsFreeForOtherRanksAndKeepsWhatIsLoaded) {
  const OpenGrant grant = Leave();
  Feed(OthersNeedRoom{true});
  EXPECT_THAT(All<DropFile>(), IsEmpty()) << "the decision may give the rank to this agent again";
  EXPECT_FALSE(machine_.view().left);
  Feed(JobState{Elsewhere(v1::State::LOAD, {1, 10})});
  EXPECT_TRUE(machine_.view().left);
  ASSERT_EQ(All<DropFile>().size(), 1u);
  EXPECT_NE(All<DropFile>()[0].slot, grant.slot);
  EXPECT_EQ(Slot(grant.slot.index).state, SlotStateCode::kSealed) << "others read it now";
  EXPECT_THAT(All<RemoveLayout>(), IsEmpty());
}

TEST_F(LeftRankTest, ItsLayoutGoesWhenNothingOfItIsNeeded) {
  const OpenGrant grant = Leave();
  Feed(JobState{Elsewhere(v1::State::LOAD, {1, 10})});
  Feed(ReadPinned{grant.slot, {1, 10}});
  Feed(JobState{Elsewhere(v1::State::RUN, {2, 20})});
  EXPECT_THAT(All<RemoveLayout>(), IsEmpty()) << "another node reads it";
  Feed(ReadUnpinned{grant.slot, {1, 10}});
  ASSERT_EQ(All<RemoveLayout>().size(), 1u);
  EXPECT_THAT(machine_.view().slots, IsEmpty());
}

TEST_F(LeftRankTest, WhatIsNotOnStorageYetStaysWhileItIsFlushed) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  Feed(Reaped{kProcess});
  Feed(JobState{Elsewhere(v1::State::RUN, {2, 20})});
  EXPECT_THAT(All<RemoveLayout>(), IsEmpty());
  Feed(FlushEnded{grant.slot, {1, 10}, absl::OkStatus()});
  EXPECT_EQ(All<RemoveLayout>().size(), 1u);
}

TEST_F(LeftRankTest, AWorldWithoutTheRankLeavesIt) {
  Leave();
  auto smaller = std::make_shared<v1::State>(*Elsewhere(v1::State::RUN, {2, 20}));
  smaller->mutable_decision()->mutable_ranks(0)->set_rank(1);
  Feed(JobState{smaller});
  EXPECT_EQ(All<RemoveLayout>().size(), 1u);
}

TEST_F(LeftRankTest, ARankThatIsOursKeepsItsMemoryForItsNextProcess) {
  Leave();
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10}, 1, kTicket + 1)});
  Feed(OthersNeedRoom{true});
  EXPECT_FALSE(machine_.view().left);
  EXPECT_THAT(All<DropFile>(), IsEmpty());
}

TEST_F(LeftRankTest, AProcessThatComesBackFindsItsLayout) {
  Leave();
  Feed(JobState{Elsewhere(v1::State::LOAD, {1, 10})});
  Feed(Attached{kProcess + 1, kTicket + 2, 0});
  Feed(OthersNeedRoom{true});
  EXPECT_FALSE(machine_.view().left);
  EXPECT_THAT(All<DropFile>(), IsEmpty());
}

// It died while it waited for room; its rank went elsewhere.
TEST_F(LeftRankTest, WhatADeadProcessWantedKeepsNoMemory) {
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(1, v1::State::LOAD, {1, 70}, {1, 70})});
  EXPECT_EQ(All<FindLayout>().size(), 1u);
  Feed(Reaped{kProcess});
  Feed(JobState{State(2, v1::State::LOAD, {1, 70}, {1, 70}, 1, kTicket + 1, "there")});
  Feed(LayoutAdded{1, 2});
  EXPECT_EQ(All<RemoveLayout>().size(), 1u);
  Feed(LayoutFound{{1, 70}, 1, absl::OkStatus()});
  EXPECT_THAT(machine_.view().slots, IsEmpty());
}

}  // namespace
}  // namespace ckptd::snapshot
