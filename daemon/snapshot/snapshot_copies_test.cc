// What a rank's slots do where other agents hold copies of them.
#include "daemon/snapshot/outcomes.h"
#include "daemon/snapshot/snapshot_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd::snapshot {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class SnapshotCopiesTest : public SnapshotTest {
 protected:
  // Attempt 2 loads 10.a1, which B and C have.
  static StatePtr LoadState() {
    auto state = std::make_shared<v1::State>(*State(2, v1::State::LOAD, {1, 10}, {1, 10}));
    state->set_copies(2);
    v1::RankSources* sources = state->add_sources();
    sources->add_agents("B");
    sources->add_agents("C");
    return state;
  }
  static StatePtr Running(StepId watermark, StepId is_protected, StepId protecting, StepId unprotected = 0) {
    auto state = std::make_shared<v1::State>(*State(1, v1::State::RUN, {}, {1, watermark}, watermark + 1));
    const auto set = [](StepId step, v1::SnapshotRef* ref) {
      ref->set_attempt(step == 0 ? 0 : 1);
      ref->set_step(step);
    };
    set(is_protected, state->mutable_protected_());
    set(protecting, state->mutable_protecting());
    set(unprotected, state->mutable_unprotected());
    return state;
  }
  void StartLoading() {
    Feed(Attached{kProcess, kTicket, 0});
    Feed(JobState{LoadState()});
    ASSERT_EQ(All<FindLayout>().size(), 1u);
    EXPECT_THAT(All<FindLayout>()[0].sources.agents, ElementsAre("B", "C"));
    Feed(LayoutAdded{3, 2});
    Feed(LayoutFound{{1, 10}, 3, absl::OkStatus()});
    ASSERT_EQ(All<Fetch>().size(), 1u);
    EXPECT_THAT(All<Fetch>()[0].sources.agents, ElementsAre("B", "C"));
  }
  // Both slots are sealed: 10 and 20.
  void SealTwo() {
    const OpenGrant first = Run();
    Feed(Bell(first, CaptureState::kComplete, 10));
    const OpenGrant second = All<OpenGrant>().at(0);
    Feed(FlushEnded{first.slot, {1, 10}, absl::OkStatus()});
    Feed(Bell(second, CaptureState::kComplete, 20));
    Feed(FlushEnded{second.slot, {1, 20}, absl::OkStatus()});
  }
};

TEST_F(SnapshotCopiesTest, LoadsFromAnotherAgent) {
  StartLoading();
  Feed(Fetched{{3, 0}, {1, 10}, absl::OkStatus(), Source::kReplica, false});
  EXPECT_EQ(All<SealSlot>().at(0).source, Source::kReplica);
  EXPECT_FALSE(All<SealSlot>().at(0).persisted);
  EXPECT_EQ(All<SendLoad>().at(0).source, Source::kReplica);
  EXPECT_EQ(All<StartFlush>().size(), 1u) << "nobody knows whether it is on storage";
  Feed(LoadFailed{2, kTicket, ErrorCode::CORRUPT, "chunk 3"});
  EXPECT_EQ(All<ReportChanged>().at(0).report->failed_source(), v1::RankReport::REPLICA);
}

TEST_F(SnapshotCopiesTest, WhatIsKnownToBeOnStorageIsNotFlushedAgain) {
  StartLoading();
  Feed(Fetched{{3, 0}, {1, 10}, absl::OkStatus(), Source::kReplica, true});
  EXPECT_THAT(All<StartFlush>(), IsEmpty());
}

TEST_F(SnapshotCopiesTest, WhatIsDurableIsNotFlushedAgain) {
  Feed(Attached{kProcess, kTicket, 0});
  auto state = std::make_shared<v1::State>(*LoadState());
  state->mutable_durable()->set_attempt(1);
  state->mutable_durable()->set_step(10);
  Feed(JobState{state});
  Feed(LayoutAdded{3, 2});
  Feed(LayoutFound{{1, 10}, 3, absl::OkStatus()});
  Feed(Fetched{{3, 0}, {1, 10}, absl::OkStatus(), Source::kReplica, false});
  EXPECT_TRUE(All<SealSlot>().at(0).persisted);
  EXPECT_THAT(All<StartFlush>(), IsEmpty()) << "a whole image written and read back for nothing";
}

TEST_F(SnapshotCopiesTest, TheStorageMayHaveAnsweredInTheirPlace) {
  StartLoading();
  Feed(Fetched{{3, 0}, {1, 10}, absl::OkStatus()});
  EXPECT_EQ(All<SendLoad>().at(0).source, Source::kStorage);
}

TEST_F(SnapshotCopiesTest, IsRebuiltFromParity) {
  auto state = std::make_shared<v1::State>(*State(2, v1::State::LOAD, {1, 10}, {1, 10}));
  state->add_sources()->mutable_parity()->set_parity(1);
  Feed(Attached{kProcess, kTicket, 0});
  Feed(JobState{state});
  ASSERT_EQ(All<FindLayout>().size(), 1u);
  EXPECT_THAT(All<FindLayout>()[0].sources.agents, IsEmpty());
  EXPECT_EQ(All<FindLayout>()[0].sources.parity->parity(), 1u);
  Feed(LayoutAdded{3, 2});
  Feed(LayoutFound{{1, 10}, 3, absl::OkStatus()});
  ASSERT_EQ(All<Fetch>().size(), 1u);
  EXPECT_NE(All<Fetch>()[0].sources.parity, nullptr);
  Feed(Fetched{{3, 0}, {1, 10}, absl::OkStatus(), Source::kParity, false});
  EXPECT_EQ(All<SendLoad>().at(0).source, Source::kParity);
  Feed(LoadFailed{2, kTicket, ErrorCode::CORRUPT, "chunk 3"});
  EXPECT_EQ(All<ReportChanged>().at(0).report->failed_source(), v1::RankReport::REPLICA);
}

TEST_F(SnapshotCopiesTest, WhenNobodyCouldGiveItTheReportSaysSo) {
  StartLoading();
  Feed(Fetched{{3, 0}, {1, 10}, Error(ErrorCode::NOT_FOUND, "gone")});
  EXPECT_EQ(All<ReportChanged>().at(0).report->failed_source(), v1::RankReport::REPLICA);
}

TEST_F(SnapshotCopiesTest, KeepsWhatIsProtectedBesideW) {
  SealTwo();
  Feed(JobState{Running(20, 10, 20)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed);
  EXPECT_THAT(All<OpenGrant>(), IsEmpty()) << "no slot is free";
  Feed(JobState{Running(20, 20, 20)});
  EXPECT_EQ(All<OpenGrant>().size(), 1u);
}

TEST_F(SnapshotCopiesTest, KeepsWhatIsBeingCopiedUntilThatIsGivenUp) {
  SealTwo();
  Feed(JobState{Running(20, 0, 10)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed);
  Feed(JobState{Running(20, 0, 10, 10)});
  EXPECT_EQ(All<OpenGrant>().size(), 1u);
}

// It was given up and protected anew, and then a newer one is captured: it is the only protected one still.
TEST_F(SnapshotCopiesTest, KeepsWhatWasMadeGoodUntilThatIsGivenUpToo) {
  SealTwo();
  const auto turned = [](uint64_t turns) {
    auto state = std::make_shared<v1::State>(*Running(20, 10, 20, 10));
    state->set_protection_turns(turns);
    return state;
  };
  Feed(JobState{turned(1)});
  EXPECT_EQ(Slot(0).state, SlotStateCode::kSealed);
  EXPECT_THAT(All<OpenGrant>(), IsEmpty()) << "no slot is free";
  Feed(JobState{turned(2)});
  EXPECT_EQ(All<OpenGrant>().size(), 1u);
}

TEST_F(SnapshotCopiesTest, TellsWhatIsProtected) {
  SealTwo();
  Feed(JobState{Running(20, 20, 20)});
  const SendNews news = All<SendNews>().at(0);
  EXPECT_EQ(news.protected_step, 20u);
  EXPECT_EQ(news.outcomes.back().step, 20u);
  EXPECT_EQ(news.outcomes.back().flags, kStepCaptured | kStepProtected);
}

TEST(OutcomesOfCopies, ProtectedStaysBesideWhatElseIsTold) {
  Outcomes outcomes;
  outcomes.Settle(10, 0, 11, 10);
  outcomes.Settle(10, 10, 11, 10);
  EXPECT_EQ(outcomes.list().at(0).flags, kStepCaptured | kStepProtected | kStepDurable);
  outcomes.Settle(20, 10, 21, 20);
  outcomes.Settle(30, 30, 31, 20);
  EXPECT_EQ(outcomes.list().at(1).flags, kStepCaptured | kStepProtected);
  EXPECT_EQ(outcomes.list().at(1).code, static_cast<uint32_t>(ErrorCode::SUPERSEDED));
}

}  // namespace
}  // namespace ckptd::snapshot
