// What trainers are told of their steps: that they are captured and durable, or that they never will be.
#include "daemon/snapshot/outcomes.h"
#include "daemon/snapshot/snapshot_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckptd {

// For gmock.
bool operator==(const StepOutcome& a, const StepOutcome& b) {
  return a.step == b.step && a.flags == b.flags && a.code == b.code;
}
void PrintTo(const StepOutcome& outcome, std::ostream* out) {
  *out << outcome.step << " is " << outcome.flags << "/" << outcome.code;
}

namespace snapshot {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

StepOutcome SealedStep(StepId step) { return {step, 0, 0}; }
StepOutcome CapturedStep(StepId step) { return {step, kStepCaptured, 0}; }
StepOutcome DurableStep(StepId step) { return {step, kStepCaptured | kStepDurable, 0}; }
StepOutcome DroppedStep(StepId step) { return {step, kStepDropped, static_cast<uint32_t>(ErrorCode::BELOW_FLOOR)}; }
StepOutcome SupersededStep(StepId step) { return {step, kStepCaptured, static_cast<uint32_t>(ErrorCode::SUPERSEDED)}; }

class NewsTest : public SnapshotTest {
 protected:
  static StatePtr Running(StepId watermark, StepId floor, StepId durable = 0) {
    auto state =
        std::make_shared<v1::State>(*State(1, v1::State::RUN, {}, {watermark != 0 ? 1u : 0u, watermark}, floor));
    state->mutable_durable()->set_attempt(durable != 0 ? 1 : 0);
    state->mutable_durable()->set_step(durable);
    return state;
  }

  // Of the last event; empty when it brought no news.
  std::vector<StepOutcome> Told() const {
    const auto news = All<SendNews>();
    EXPECT_LE(news.size(), 1u);
    return news.empty() ? std::vector<StepOutcome>() : news[0].outcomes;
  }

  // Two steps of a running rank: 10 in slot 0 and 20 in slot 1, both sealed.
  void SealTwo() {
    first_ = Run();
    Feed(Bell(first_, CaptureState::kComplete, 10));
    second_ = All<OpenGrant>().at(0);
    Feed(JobState{Running(10, 11)});
    Feed(Bell(second_, CaptureState::kComplete, 20));
  }

  OpenGrant first_;
  OpenGrant second_;
};

TEST_F(NewsTest, CapturedDurableAndFenced) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  Feed(JobState{Running(10, 11)});
  EXPECT_THAT(Told(), ElementsAre(CapturedStep(10)));
  EXPECT_EQ(All<SendNews>().at(0).captured, 10u);
  Feed(JobState{Running(10, 11, 10)});
  EXPECT_THAT(Told(), ElementsAre(DurableStep(10)));
  EXPECT_EQ(All<SendNews>().at(0).durable, 10u);
  Feed(JobState{State(2, v1::State::GATHER)});
  EXPECT_THAT(Told(), ElementsAre(DurableStep(10)));
  EXPECT_EQ(All<SendNews>().at(0).fenced_by, 2u);
  EXPECT_EQ(All<SendNews>().at(0).captured, 10u);
}

TEST_F(NewsTest, NothingNewIsNotTold) {
  SealTwo();
  Feed(JobState{Running(20, 21)});
  EXPECT_THAT(Told(), ElementsAre(CapturedStep(10), CapturedStep(20)));
  Feed(JobState{Running(20, 21)});
  EXPECT_THAT(All<SendNews>(), IsEmpty());
}

// The last save of a run: no capture comes after it that would tell its trainer.
TEST_F(NewsTest, ACaptureThatEndedBelowTheFloor) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kOpen, 10));
  Feed(JobState{Running(0, 12)});
  EXPECT_THAT(All<SendNews>(), IsEmpty()) << "its trainer still copies";
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_THAT(Told(), ElementsAre(DroppedStep(10)));
  Feed(Bell(grant, CaptureState::kComplete, 10));
  EXPECT_THAT(All<SendNews>(), IsEmpty()) << "a word that stays in the bell is no news";
}

TEST_F(NewsTest, ASealedStepThatAnotherRankPassed) {
  const OpenGrant grant = Run();
  Feed(Bell(grant, CaptureState::kComplete, 10));
  Feed(JobState{Running(0, 12)});
  EXPECT_THAT(Told(), ElementsAre(DroppedStep(10)));
}

TEST_F(NewsTest, ACaptureWithoutItsChecksumsIsDroppedAtOnce) {
  const OpenGrant grant = Run();
  BellRead bell = Bell(grant, CaptureState::kComplete, 10);
  bell.words[0].crcs_valid = false;
  Feed(bell);
  EXPECT_THAT(Told(), ElementsAre(StepOutcome{10, kStepDropped, static_cast<uint32_t>(ErrorCode::INTERNAL)}));
}

// A stray write into the bell is no word on an older step.
TEST_F(NewsTest, ACaptureWithAStrangeStepIsNotTold) {
  SealTwo();
  Feed(JobState{Running(20, 21, 10)});
  Feed(FlushEnded{first_.slot, {1, 10}, absl::OkStatus()});
  OpenGrant grant = All<OpenGrant>().at(0);
  for (const StepId step : {15, 20}) {
    BellRead bell = Bell(grant, CaptureState::kComplete, step);
    bell.words[0].crcs_valid = false;
    Feed(bell);
    EXPECT_THAT(All<SendNews>(), IsEmpty()) << step;
    grant = All<OpenGrant>().at(0);
  }
}

// A flush that fails holds no slot behind W, so that it is never tried again.
TEST_F(NewsTest, ACapturedStepThatIsFreedBeforeItIsFlushed) {
  SealTwo();
  Feed(FlushEnded{first_.slot, {1, 10}, absl::UnavailableError("disk")});
  Feed(JobState{Running(20, 21)});
  EXPECT_THAT(Told(), ElementsAre(SupersededStep(10), CapturedStep(20)));
  EXPECT_EQ(All<Superseded>().size(), 1u);
  Feed(JobState{Running(20, 21, 20)});
  EXPECT_THAT(Told(), ElementsAre(SupersededStep(10), DurableStep(20)));
}

// This rank has flushed it, another one has not.
TEST_F(NewsTest, ACapturedStepWithANewerOneOnStorage) {
  SealTwo();
  Feed(FlushEnded{first_.slot, {1, 10}, absl::OkStatus()});
  Feed(JobState{Running(20, 21)});
  EXPECT_THAT(Told(), ElementsAre(CapturedStep(10), CapturedStep(20))) << "it may still become durable";
  Feed(JobState{Running(20, 21, 20)});
  EXPECT_THAT(Told(), ElementsAre(SupersededStep(10), DurableStep(20)));
}

TEST_F(NewsTest, AnOlderDurableStepStaysDurable) {
  SealTwo();
  Feed(FlushEnded{first_.slot, {1, 10}, absl::OkStatus()});
  Feed(JobState{Running(20, 21, 10)});
  Feed(JobState{Running(20, 21, 20)});
  EXPECT_THAT(Told(), ElementsAre(DurableStep(10), DurableStep(20)));
}

// The agent before captured 10 and 20, and flushed 10; COMPLETE words and slots of that time are still there. It may
// have ended before it could tell of the newest.
TEST_F(NewsTest, ARestartedAgentDropsNothingThatItDidNotSee) {
  const Owner owner{1, kTicket, kProcess};
  Feed(Adopted{1,
               {{{1, 0}, SlotStateCode::kSealed, 5, owner, {1, 10}, true},
                {{1, 1}, SlotStateCode::kSealed, 6, owner, {1, 20}, false},
                {{1, 2}, SlotStateCode::kFilling, 7, owner, {}, false}}});
  Feed(Attached{kProcess, kTicket, 1});
  Feed(LayoutChosen{kProcess, 1});
  Feed(BellRead{kProcess,
                1,
                30,
                {{{1, 0}, 5, CaptureState::kComplete, 10, 0, true},
                 {{1, 1}, 6, CaptureState::kComplete, 20, 0, true},
                 {{1, 2}, 7, CaptureState::kComplete, 30, 0, true}}});
  EXPECT_EQ(All<SealSlot>().size(), 1u);
  Feed(JobState{Running(20, 21, 10)});
  EXPECT_THAT(Told(), ElementsAre(SealedStep(30), DurableStep(10), CapturedStep(20)));
  Feed(JobState{Running(20, 40, 10)});
  EXPECT_THAT(Told(), ElementsAre(DroppedStep(30), DurableStep(10), CapturedStep(20)));
}

// Right after its restart the coordinator may name an older W than the newest durable step: the slot of the newer was
// damaged. Whether the older was durable nobody knows then.
TEST_F(NewsTest, ARestartedAgentDoesNotSupersedeWhatMayBeDurable) {
  const Owner owner{1, kTicket, kProcess};
  Feed(Adopted{1, {{{1, 0}, SlotStateCode::kSealed, 5, owner, {1, 10}, true}}});
  Feed(Attached{kProcess, kTicket, 1});
  Feed(LayoutChosen{kProcess, 1});
  Feed(JobState{Running(10, 11, 20)});
  EXPECT_THAT(Told(), ElementsAre(DurableStep(20)));
}

TEST_F(NewsTest, AnAttemptHasItsOwnSteps) {
  Feed(Bell(Run(), CaptureState::kComplete, 10));
  Feed(JobState{Running(10, 11, 10)});
  Feed(Attached{kProcess, kTicket + 1, 0});
  Feed(JobState{State(2, v1::State::LOAD, {1, 10}, {1, 10}, 1, kTicket + 1)});
  Feed(Loaded{2, kTicket + 1});
  Feed(JobState{State(2, v1::State::RUN, {1, 10}, {1, 10}, 1, kTicket + 1)});
  ASSERT_EQ(All<SendGo>().size(), 1u);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST(Outcomes, KeepsTheLastAndTellsTheNewestDurableAllTheSame) {
  Outcomes outcomes;
  for (StepId step = 1; step <= 40; ++step) outcomes.Sealed(step);
  EXPECT_EQ(outcomes.list().size(), kMaxOutcomes);
  EXPECT_FALSE(outcomes.TakeNews()) << "the trainer knows that";
  outcomes.Settle(40, 1, 41);
  EXPECT_TRUE(outcomes.TakeNews());
  EXPECT_THAT(outcomes.list(), testing::Contains(DurableStep(1)));
  EXPECT_EQ(outcomes.list().size(), kMaxOutcomes);
}

TEST(Outcomes, AStepThatIsSettledStaysSo) {
  Outcomes outcomes;
  outcomes.Settle(10, 10, 11);
  outcomes.Dropped(10, ErrorCode::BELOW_FLOOR);
  outcomes.Superseded(10);
  EXPECT_THAT(outcomes.list(), ElementsAre(DurableStep(10)));
}

}  // namespace
}  // namespace snapshot
}  // namespace ckptd
