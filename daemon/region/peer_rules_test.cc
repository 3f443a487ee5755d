#include "daemon/region/peer_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd::region {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<SnapshotId>;

PeerMarks MarksOf(AttemptId attempt, StepId floor, SnapshotId captured = {}, SnapshotId kept = {}) {
  return {.attempt = attempt, .protected_ = kept, .captured = captured, .floor = floor};
}

PeerSlotFacts Sealed(SnapshotId id, bool held = false) {
  return {.state = SlotStateCode::kSealed, .id = id, .held = held};
}

TEST(PeerMarks, GrowWithinAnAttempt) {
  PeerMarks marks = MarksOf(3, 11, {3, 10}, {2, 5});
  ASSERT_TRUE(Advance(marks, MarksOf(3, 5, {3, 4}, {3, 8})).ok());
  EXPECT_EQ(marks, MarksOf(3, 11, {3, 10}, {3, 8}));
}

TEST(PeerMarks, AHigherAttemptForgetsWhatWasBeforeALowerOneIsFenced) {
  PeerMarks marks = MarksOf(3, 101, {3, 100}, {3, 90});
  ASSERT_TRUE(Advance(marks, MarksOf(4, 1, {2, 50})).ok());
  EXPECT_EQ(marks, MarksOf(4, 1, {2, 50})) << "rolled back";
  EXPECT_EQ(CodeOf(Advance(marks, MarksOf(3, 500))), ErrorCode::FENCED);
  EXPECT_EQ(marks, MarksOf(4, 1, {2, 50}));
}

TEST(MayGo, NothingBeforeTheDecisionIsKnown) {
  EXPECT_FALSE(MayGo({1, 10}, Ids{{1, 10}, {1, 20}}, MarksOf(2, 0)));
  EXPECT_TRUE(MayGo({1, 10}, Ids{{1, 10}, {1, 20}}, MarksOf(2, 1)));
}

TEST(MayGo, NeitherCapturedNorProtectedNorLive) {
  const Ids complete = {{1, 10}, {1, 20}, {1, 30}, {1, 40}};
  const PeerMarks marks = MarksOf(1, 31, {1, 30}, {1, 10});
  EXPECT_FALSE(MayGo({1, 10}, complete, marks)) << "protected";
  EXPECT_TRUE(MayGo({1, 20}, complete, marks));
  EXPECT_FALSE(MayGo({1, 30}, complete, marks)) << "captured";
  EXPECT_FALSE(MayGo({1, 40}, complete, marks)) << "live";
}

TEST(MayGo, TheNewestOnlyWhenAMarkedOneIsHere) {
  const PeerMarks marks = MarksOf(1, 31, {1, 30}, {1, 10});
  EXPECT_FALSE(MayGo({1, 20}, Ids{{1, 5}, {1, 20}}, marks)) << "it is all that this rank has";
  EXPECT_TRUE(MayGo({1, 5}, Ids{{1, 5}, {1, 20}}, marks));
  EXPECT_TRUE(MayGo({1, 20}, Ids{{1, 10}, {1, 20}}, marks)) << "dropped: some rank never captured it";
}

TEST(MayGo, AfterARollBackWhatIsOffTheLineage) {
  const PeerMarks marks = MarksOf(5, 1, {3, 50});
  EXPECT_TRUE(MayGo({4, 100}, Ids{{3, 50}, {4, 100}}, marks));
  EXPECT_FALSE(MayGo({4, 100}, Ids{{3, 40}, {4, 100}}, marks)) << "until the step rolled back to is here";
  EXPECT_TRUE(MayGo({3, 40}, Ids{{3, 40}, {4, 100}}, marks));
}

TEST(CheckWanted, SaysWhyNot) {
  const Ids complete = {{3, 100}};
  const PeerMarks marks = MarksOf(4, 10, {2, 50});
  EXPECT_TRUE(CheckWanted({4, 10}, complete, marks).ok());
  EXPECT_TRUE(CheckWanted({2, 50}, complete, marks).ok()) << "the step that the attempt began with";
  EXPECT_EQ(CodeOf(CheckWanted({2, 51}, complete, marks)), ErrorCode::SUPERSEDED);
  EXPECT_EQ(CodeOf(CheckWanted({3, 99}, complete, marks)), ErrorCode::SUPERSEDED);
  EXPECT_EQ(CodeOf(CheckWanted({3, 100}, complete, marks)), ErrorCode::REFUSED);
  EXPECT_EQ(CodeOf(CheckWanted({4, 9}, complete, marks)), ErrorCode::BELOW_FLOOR);
  EXPECT_EQ(CodeOf(CheckWanted({5, 9}, complete, marks)), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(CheckWanted({0, 9}, complete, marks)), ErrorCode::INVALID_ARGUMENT);
}

TEST(Overtakes, TheNewestAndWhatAllRanksCopyNow) {
  const PeerMarks marks = MarksOf(2, 11, {2, 10}, {2, 5});
  EXPECT_TRUE(Overtakes({2, 20}, {2, 15}, marks));
  EXPECT_TRUE(Overtakes({2, 15}, {2, 15}, marks)) << "of another owner";
  EXPECT_FALSE(Overtakes({2, 14}, {2, 15}, marks));
  EXPECT_TRUE(Overtakes({2, 10}, {2, 15}, marks)) << "its turn is now, and 15's may never come";
  EXPECT_FALSE(Overtakes({2, 5}, {2, 15}, marks)) << "protected before";
  EXPECT_FALSE(Overtakes({2, 5}, {2, 10}, marks));
}

TEST(ChooseSlot, TakesWhatIsEmptyThenTheOldestThatMayGo) {
  const PeerMarks marks = MarksOf(1, 31, {1, 30});
  const Ids complete = {{1, 20}, {1, 10}};
  const PeerSlotFacts loading{.state = SlotStateCode::kLoading, .id = {}, .held = false};
  EXPECT_EQ(*ChooseSlot(std::vector{Sealed({1, 10}), loading}, complete, marks), 1u);
  EXPECT_EQ(*ChooseSlot(std::vector{Sealed({1, 20}), Sealed({1, 10})}, complete, marks), 1u);
}

TEST(ChooseSlot, NeverWhatSomebodyHolds) {
  const PeerMarks marks = MarksOf(1, 31, {1, 30});
  const Ids complete = {{1, 20}, {1, 10}};
  const PeerSlotFacts written{.state = SlotStateCode::kFree, .id = {}, .held = true};
  auto none = ChooseSlot(std::vector{Sealed({1, 10}, true), written}, complete, marks);
  EXPECT_EQ(CodeOf(none.status()), ErrorCode::BUSY);
  EXPECT_THAT(none.status().message(), HasSubstr("step 10.a1 is being read, an older copy is still being written"));
  EXPECT_EQ(CodeOf(ChooseSlot(std::vector{Sealed({1, 30})}, Ids{{1, 30}}, marks).status()), ErrorCode::BUSY);
}

}  // namespace
}  // namespace ckptd::region
