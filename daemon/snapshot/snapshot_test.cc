// The life of a rank's slots, case by case. The randomised test in tests/protocol drives the same machine.
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "daemon/snapshot/machine.h"
#include "daemon/snapshot/table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::snapshot {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr ProcessId kProcess = 11;
constexpr Ticket kTicket = 77;

// Keeps the last effects of each kind.
class SnapshotTest : public testing::Test {
 protected:
  SnapshotTest() : machine_(Config{"job", 0, {}}) {}

  void Feed(const Event& event) {
    effects_.clear();
    machine_.Step(event, effects_);
  }

  template <typename T>
  std::vector<T> All() const {
    std::vector<T> out;
    for (const Effect& effect : effects_) {
      if (const T* found = std::get_if<T>(&effect)) out.push_back(*found);
    }
    return out;
  }

  static StatePtr State(AttemptId attempt, v1::State::Phase phase, SnapshotId parent = {}, SnapshotId watermark = {},
                        StepId floor = 1, Ticket ticket = kTicket) {
    auto state = std::make_shared<v1::State>();
    state->set_attempt(attempt);
    state->set_phase(phase);
    if (phase == v1::State::GATHER) return state;
    v1::RankClaim* claim = state->mutable_decision()->add_ranks();
    claim->set_ticket(ticket);
    if (!parent.none()) {
      state->mutable_decision()->mutable_parent()->set_attempt(parent.attempt);
      state->mutable_decision()->mutable_parent()->set_step(parent.step);
    }
    state->mutable_watermark()->set_attempt(watermark.attempt);
    state->mutable_watermark()->set_step(watermark.step);
    state->set_floor(floor);
    return state;
  }

  // A running rank of attempt 1 that started afresh; the first grant is out.
  OpenGrant Run() {
    Feed(Attached{kProcess, kTicket, 0});
    Feed(JobState{State(1, v1::State::LOAD)});
    Feed(Loaded{1, kTicket});
    Feed(JobState{State(1, v1::State::RUN)});
    Feed(LayoutAdded{1, 2});
    Feed(LayoutChosen{kProcess, 1});
    const auto grants = All<OpenGrant>();
    EXPECT_EQ(grants.size(), 1u);
    return grants.at(0);
  }

  static BellRead Bell(const OpenGrant& grant, CaptureState state, StepId step, AttemptId attempt = 1) {
    return {grant.owner.process, attempt, step, {{grant.slot, grant.epoch, state, step, 0, true}}};
  }

  SlotView Slot(uint32_t index, uint32_t layout = 1) const {
    for (const SlotView& slot : machine_.view().slots) {
      if (slot.id == SlotId{layout, index}) return slot;
    }
    ADD_FAILURE() << "no slot " << index;
    return {};
  }

  Machine machine_;
  Effects effects_;
};

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

TEST_F(SnapshotTest, AReapedWriterFreesItsSlots) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(Reaped{kProcess});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFree);
  EXPECT_EQ(All<ReportChanged>().at(0).report->load(), v1::RankReport::NONE);
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

TEST_F(SnapshotTest, OnlyTheDecidedTicketLoads) {
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(1, v1::State::LOAD, {}, {}, 1, 99)});
  EXPECT_THAT(All<SendLoad>(), IsEmpty());
  Feed(JobState{State(1, v1::State::RUN, {}, {}, 1, 99)});
  EXPECT_THAT(All<SendGo>(), IsEmpty());
}

TEST_F(SnapshotTest, LoadsFromTheRegionAndQuarantinesBadBytes) {
  Feed(Adopted{1, {{{1, 0}, SlotStateCode::kSealed, 5, {}, {1, 10}, true}}});
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10})});
  ASSERT_EQ(All<SendLoad>().size(), 1u);
  EXPECT_EQ(All<SendLoad>()[0].source, Source::kRegion);
  Feed(LoadFailed{2, kTicket, ErrorCode::CORRUPT, "chunk 3"});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kQuarantined);
  const v1::RankReport report = *All<ReportChanged>().at(0).report;
  EXPECT_EQ(report.load(), v1::RankReport::FAILED);
  EXPECT_EQ(report.sealed_size(), 0);
  EXPECT_EQ(report.quarantined_size(), 1);
}

TEST_F(SnapshotTest, FetchesFromStorageIntoASlot) {
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10})});
  ASSERT_EQ(All<FindLayout>().size(), 1u);
  Feed(LayoutAdded{3, 2});
  Feed(LayoutFound{{1, 10}, 3, absl::OkStatus()});
  ASSERT_EQ(All<Fetch>().size(), 1u);
  Feed(Fetched{{3, 0}, {1, 10}, absl::OkStatus()});
  EXPECT_TRUE(All<SealSlot>().at(0).persisted);
  EXPECT_EQ(All<SendLoad>().at(0).source, Source::kStorage);
  EXPECT_THAT(All<StartFlush>(), IsEmpty()) << "it came from there";
}

TEST_F(SnapshotTest, AFetchThatFailsIsReported) {
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10})});
  Feed(LayoutAdded{3, 2});
  Feed(LayoutFound{{1, 10}, 3, absl::OkStatus()});
  Feed(Fetched{{3, 0}, {1, 10}, Error(ErrorCode::CORRUPT, "bad part")});
  EXPECT_EQ(Slot(0, 3).state, SlotStateCode::kFree);
  EXPECT_EQ(All<ReportChanged>().at(0).report->failed_source(), v1::RankReport::STORAGE);
  EXPECT_THAT(All<Fetch>(), IsEmpty()) << "not again within this attempt";
}

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

TEST_F(SnapshotTest, AReaderNeverBlocksTheNextSave) {
  const OpenGrant first = Run();
  Feed(Bell(first, CaptureState::kComplete, 10));
  const OpenGrant second = All<OpenGrant>().at(0);
  Feed(FlushEnded{first.slot, {1, 10}, absl::OkStatus()});
  Feed(ReadPinned{first.slot, {1, 10}});
  Feed(Bell(second, CaptureState::kComplete, 20));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 20}, 21)});
  EXPECT_EQ(All<ReplaceFile>().size(), 1u) << "the reader keeps the old file";
  Feed(FileReplaced{first.slot, absl::OkStatus()});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
  Feed(ReadUnpinned{first.slot, {1, 10}});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kFilling);
}

TEST_F(SnapshotTest, ARepeatedJoinAfterAnAgentRestartGetsGoAgain) {
  Run();
  Feed(Attached{kProcess, kTicket, 0});
  ASSERT_EQ(All<SendGo>().size(), 1u);
  EXPECT_EQ(All<SendGo>()[0].attempt, 1u);
}

TEST_F(SnapshotTest, DrainingLendsNothing) {
  const OpenGrant grant = Run();
  Feed(Draining{true});
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_THAT(All<OpenGrant>(), IsEmpty());
  Feed(Draining{false});
  EXPECT_EQ(All<OpenGrant>().size(), 1u);
}

// The last save of a run: no capture comes after it that would tell its trainer.
TEST_F(SnapshotTest, NewsTellOfACaptureThatEndedBelowTheFloor) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(JobState{State(1, v1::State::RUN, {}, {}, 12)});
  ASSERT_EQ(All<SendNews>().size(), 1u);
  EXPECT_EQ(All<SendNews>()[0].floor, 12u);
  Feed(Bell(grant, CaptureState::kComplete, 10));
  ASSERT_EQ(All<SendNews>().size(), 1u) << "again: the step was not known when the floor was told";
  EXPECT_EQ(All<SendNews>()[0].dropped, 10u);
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_THAT(All<SendNews>(), IsEmpty()) << "a word that stays in the bell is no news";
}

TEST_F(SnapshotTest, NewsTellCapturedDurableAndFenced) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  Feed(JobState{State(1, v1::State::RUN, {}, {1, 10}, 11)});
  ASSERT_EQ(All<SendNews>().size(), 1u);
  EXPECT_EQ(All<SendNews>()[0].captured, 10u);
  Feed(JobState{State(2, v1::State::GATHER)});
  ASSERT_EQ(All<SendNews>().size(), 1u);
  EXPECT_EQ(All<SendNews>()[0].fenced_by, 2u);
  EXPECT_EQ(All<SendNews>()[0].captured, 10u);
}

}  // namespace
}  // namespace ckptd::snapshot
