// restore() of one rank: LOAD from the region or from storage, and GO.
#include "daemon/snapshot/snapshot_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::snapshot {
namespace {

using testing::IsEmpty;

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

// By the agent, then by the process.
TEST_F(SnapshotTest, WhoeverWaitsForTheRankIsToldThatItIsRead) {
  Feed(Attached{kProcess, kTicket, 0});
  Feed(LoadGoesOn{0, kTicket});
  EXPECT_THAT(All<ReportChanged>(), IsEmpty()) << "nothing is decided";
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10})});
  EXPECT_TRUE(machine_.view().reading);
  Feed(LoadGoesOn{2, kTicket});
  EXPECT_EQ(All<ReportChanged>().at(0).report->load_turns(), 1u);
  Feed(LoadGoesOn{1, kTicket});
  Feed(LoadGoesOn{2, kTicket + 1});
  EXPECT_THAT(All<ReportChanged>(), IsEmpty()) << "of another attempt, of another call";
  Feed(LayoutAdded{3, 2});
  Feed(LayoutFound{{1, 10}, 3, absl::OkStatus()});
  EXPECT_TRUE(machine_.view().reading);
  Feed(Fetched{{3, 0}, {1, 10}, absl::OkStatus()});
  EXPECT_FALSE(machine_.view().reading);
  Feed(LoadGoesOn{2, kTicket});
  EXPECT_EQ(All<ReportChanged>().at(0).report->load_turns(), 2u);
  Feed(Loaded{2, kTicket});
  Feed(LoadGoesOn{2, kTicket});
  EXPECT_THAT(All<ReportChanged>(), IsEmpty());
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

// Whoever has it refuses who asks for an attempt that is over.
TEST_F(SnapshotTest, AFetchOfTheAttemptBeforeThatFailsIsBegunAnew) {
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10})});
  Feed(LayoutAdded{3, 2});
  Feed(LayoutFound{{1, 10}, 3, absl::OkStatus()});
  Feed(JobState{State(3, v1::State::LOAD, {1, 10}, {1, 10})});
  EXPECT_THAT(All<Fetch>(), IsEmpty()) << "one at a time";
  Feed(Fetched{{3, 0}, {1, 10}, Error(ErrorCode::FENCED, "attempt 3 follows attempt 2")});
  ASSERT_EQ(All<FindLayout>().size(), 1u);
  Feed(LayoutFound{{1, 10}, 3, absl::OkStatus()});
  ASSERT_EQ(All<Fetch>().size(), 1u);
  Feed(Fetched{{3, 0}, {1, 10}, Error(ErrorCode::CORRUPT, "bad part")});
  EXPECT_EQ(All<ReportChanged>().at(0).report->load(), v1::RankReport::FAILED);
}

TEST_F(SnapshotTest, ALayoutThatWasNotFoundInTheAttemptBeforeIsAskedForAnew) {
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10})});
  Feed(JobState{State(3, v1::State::LOAD, {1, 10}, {1, 10})});
  Feed(LayoutFound{{1, 10}, 0, Error(ErrorCode::FENCED, "attempt 3 follows attempt 2")});
  ASSERT_EQ(All<FindLayout>().size(), 1u);
  Feed(LayoutFound{{1, 10}, 0, Error(ErrorCode::NOT_FOUND, "nowhere")});
  EXPECT_EQ(All<ReportChanged>().at(0).report->load(), v1::RankReport::FAILED);
}

TEST_F(SnapshotTest, MemoryThatIsMissingIsNoFaultOfTheSource) {
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10})});
  Feed(LayoutFound{{1, 10}, 0, Error(ErrorCode::REGION_FULL, "needs 40 MiB")});
  const v1::RankReport report = *All<ReportChanged>().at(0).report;
  EXPECT_EQ(report.load(), v1::RankReport::FAILED);
  EXPECT_EQ(report.failure_code(), static_cast<uint32_t>(ErrorCode::REGION_FULL));
  EXPECT_EQ(report.failed_source(), v1::RankReport::UNKNOWN) << "the step would be passed over for ever";
}

TEST_F(SnapshotTest, ARepeatedJoinAfterAnAgentRestartGetsGoAgain) {
  Run();
  Feed(Attached{kProcess, kTicket, 0});
  ASSERT_EQ(All<SendGo>().size(), 1u);
  EXPECT_EQ(All<SendGo>()[0].attempt, 1u);
}

}  // namespace
}  // namespace ckptd::snapshot
