#include "daemon/protect/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::protect {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr SnapshotId kTen{1, 10};
constexpr SnapshotId kTwenty{1, 20};
constexpr bool kCounted = true;

std::set<CopyKey> Owed(const std::vector<std::string>& holders, const std::set<Rank>& ranks) {
  std::set<CopyKey> owed;
  for (const Rank rank : ranks) {
    for (const std::string& agent : holders) owed.insert({rank, agent});
  }
  return owed;
}

std::vector<std::string> Told(Plan& plan, Nanos now = Nanos(0)) {
  std::vector<std::string> told;
  for (const Order& order : plan.Next(now)) {
    told.push_back(absl::StrCat(order.kind == Order::Kind::kStart ? "start " : "cancel ", order.to.rank, " to ",
                                order.to.agent, " step ", order.snapshot.step));
  }
  return told;
}

absl::Status Broken() { return Error(ErrorCode::TIMEOUT, "node b is silent"); }

// In milliseconds for seconds: 30 without room, 600 with it.
Plan PlanOfRoom() { return Plan({milliseconds(1), milliseconds(1), milliseconds(30), milliseconds(600)}); }
constexpr bool kHadRoom = true;

// One try, that ends so; whether it is overdue then.
bool EndsOverdue(Plan& plan, const CopyKey& to, const absl::Status& status, int at, bool had_room) {
  (void)plan.Next(milliseconds(at));
  plan.Ended(to, plan.target(), status, milliseconds(at), had_room);
  return plan.IsOverdue(to);
}

TEST(Plan, EachRankGoesToEachHolderOnce) {
  Plan plan;
  EXPECT_THAT(Told(plan), IsEmpty());
  plan.SetTarget(kTen, Owed({"b", "c"}, {0, 4}), kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 10", "start 0 to c step 10", "start 4 to b step 10",
                                      "start 4 to c step 10"));
  EXPECT_THAT(Told(plan), IsEmpty());
  EXPECT_EQ(plan.count().under_way, 4u);
  for (const Rank rank : {0, 4}) {
    for (const char* agent : {"b", "c"}) plan.Ended({rank, agent}, kTen, absl::OkStatus(), Nanos(1));
  }
  EXPECT_EQ(plan.count().done, 4u);
  plan.SetTarget(kTen, Owed({"b", "c"}, {0, 4}), kCounted);
  EXPECT_THAT(Told(plan, milliseconds(60'000)), IsEmpty()) << "what is done stays done";
  EXPECT_FALSE(plan.wake().has_value());
}

TEST(Plan, PiecesForSeveralStripesOfOneHolderAreApart) {
  Plan plan;
  plan.SetTarget(kTen, {{0, "b", 1}, {0, "b", 2}}, kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 10", "start 0 to b step 10"));
  plan.Ended({0, "b", 1}, kTen, absl::OkStatus(), Nanos(1));
  EXPECT_EQ(plan.count().done, 1u);
  EXPECT_EQ(plan.count().under_way, 1u);
}

TEST(Plan, AHolderThatHadNoRoomIsAskedForTheNextStepAtOnceAndOneThatFailedIsNot) {
  Plan plan;
  plan.SetTarget(kTen, Owed({"b", "c"}, {0}), kCounted);
  (void)Told(plan);
  plan.Ended({0, "b"}, kTen, Error(ErrorCode::BUSY, "not yet"), Nanos(0));
  plan.Ended({0, "c"}, kTen, Broken(), Nanos(0));
  EXPECT_THAT(Told(plan), IsEmpty());
  plan.SetTarget(kTwenty, Owed({"b", "c"}, {0}), kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 20"));
}

TEST(Plan, WhatFailsIsTriedAgainAfterPausesThatGrow) {
  Plan plan({milliseconds(100), milliseconds(300)});
  plan.SetTarget(kTen, Owed({"b"}, {0}), kCounted);
  Nanos now(0);
  for (const int pause : {100, 200, 300, 300}) {
    EXPECT_THAT(Told(plan, now), ElementsAre("start 0 to b step 10"));
    plan.Ended({0, "b"}, kTen, Broken(), now);
    EXPECT_EQ(plan.last_error(), Broken());
    EXPECT_EQ(plan.wake(), now + milliseconds(pause));
    EXPECT_THAT(Told(plan, now + milliseconds(pause) - Nanos(1)), IsEmpty());
    now += milliseconds(pause);
  }
  EXPECT_THAT(Told(plan, now), ElementsAre("start 0 to b step 10"));
  plan.Ended({0, "b"}, kTen, absl::OkStatus(), now);
  EXPECT_TRUE(plan.last_error().ok());
}

TEST(Plan, AHolderWithoutRoomYetIsNoError) {
  Plan plan;
  plan.SetTarget(kTen, Owed({"b"}, {0}), false);
  EXPECT_EQ(Told(plan).size(), 1u);
  plan.Ended({0, "b"}, kTen, Error(ErrorCode::LAYOUT_PREPARING, "not yet"), Nanos(0));
  EXPECT_TRUE(plan.last_error().ok());
  EXPECT_THAT(Told(plan, milliseconds(200)), ElementsAre("start 0 to b step 10"));
}

// The target keeps a slot of every rank, so nobody waits for such a holder for ever; but it is still asked.
TEST(Plan, AHolderThatHasNoRoomForLongIsOverdueUntilItTakesOneOrTheNextIsWanted) {
  Plan plan({milliseconds(100), milliseconds(300), milliseconds(1000)});
  const absl::Status busy = Error(ErrorCode::BUSY, "no slot is free yet");
  plan.SetTarget(kTen, Owed({"b", "c"}, {0}), false);
  EXPECT_EQ(Told(plan).size(), 2u);
  plan.Ended({0, "c"}, kTen, absl::OkStatus(), Nanos(0));
  Nanos now(0);
  for (; now < milliseconds(1000); now += milliseconds(500)) {
    plan.Ended({0, "b"}, kTen, busy, now);
    EXPECT_FALSE(plan.IsOverdue({0, "b"}));
    EXPECT_TRUE(plan.last_error().ok());
    (void)plan.Next(now + milliseconds(500));
  }
  plan.Ended({0, "b"}, kTen, busy, now);
  EXPECT_TRUE(plan.IsOverdue({0, "b"}));
  EXPECT_FALSE(plan.IsOverdue({0, "c"}));
  EXPECT_EQ(plan.last_error(),
            Error(ErrorCode::BUSY, "node b has taken no copy of rank 0 for 1 s: no slot is free yet"));
  EXPECT_THAT(Told(plan, now + milliseconds(300)), ::testing::Contains("start 0 to b step 10"));
  plan.SetTarget(kTwenty, Owed({"b", "c"}, {0}), false);
  EXPECT_FALSE(plan.IsOverdue({0, "b"}));
  plan.Ended({0, "b"}, kTen, busy, now);
  EXPECT_FALSE(plan.IsOverdue({0, "b"})) << "of another step";
  (void)plan.Next(now);
  plan.Ended({0, "b"}, kTwenty, busy, now);
  EXPECT_TRUE(plan.IsOverdue({0, "b"})) << "it still has no room, and was waited for already";
}

TEST(Plan, TheTimeOfOneThatWasNotOverdueBeginsAnewWithTheNextStep) {
  Plan plan = PlanOfRoom();
  const absl::Status busy = Error(ErrorCode::BUSY, "no slot is free yet");
  plan.SetTarget(kTen, Owed({"b"}, {0}), false);
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 10, !kHadRoom));
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 39, !kHadRoom));
  plan.SetTarget(kTwenty, Owed({"b"}, {0}), false);
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 45, !kHadRoom));
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 74, !kHadRoom));
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, busy, 75, !kHadRoom));
}

// Somebody else's copy was refused first.
TEST(Plan, OneThatWasOverdueIsSoAgainAfterStepsForWhichItWasNotHeard) {
  Plan plan = PlanOfRoom();
  plan.SetTarget(kTen, Owed({"b"}, {0}), false);
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, Broken(), 10, !kHadRoom));
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, Broken(), 40, !kHadRoom));
  plan.SetTarget(kTwenty, Owed({"b"}, {0}), false);
  plan.SetTarget({1, 30}, Owed({"b"}, {0}), false);
  EXPECT_EQ(plan.wake(), Nanos(0)) << "training waits until it is heard";
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, Broken(), 50, !kHadRoom));
  plan.SetTarget({1, 40}, Owed({"b"}, {0}), false);
  EXPECT_THAT(Told(plan, milliseconds(60)), ElementsAre("start 0 to b step 40"));
  plan.SetTarget({1, 50}, Owed({"b"}, {0}), false);
  plan.Ended({0, "b"}, {1, 40}, Error(ErrorCode::CANCELLED, "cancelled"), milliseconds(70), kHadRoom);
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, Broken(), 80, !kHadRoom)) << "it had room when it was given up here";
}

TEST(Plan, OneThatWasOverdueAndHasRoomIsGivenTimeAgain) {
  Plan plan = PlanOfRoom();
  const absl::Status busy = Error(ErrorCode::BUSY, "no slot is free yet");
  plan.SetTarget(kTen, Owed({"b"}, {0}), false);
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, Broken(), 10, !kHadRoom));
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, Broken(), 40, !kHadRoom));
  plan.SetTarget(kTwenty, Owed({"b"}, {0}), false);
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 50, kHadRoom));
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 60, !kHadRoom));
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, busy, 90, !kHadRoom));
}

TEST(Plan, WhileItIsHeldNothingIsStartedAndNoTimePasses) {
  Plan plan = PlanOfRoom();
  plan.SetTarget(kTen, Owed({"b"}, {0}), false);
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, Broken(), 10, !kHadRoom));
  EXPECT_THAT(Told(plan, milliseconds(20)), ElementsAre("start 0 to b step 10"));
  plan.Hold(true);
  plan.Ended({0, "b"}, kTen, Broken(), milliseconds(30));
  EXPECT_THAT(Told(plan, milliseconds(90)), IsEmpty());
  EXPECT_EQ(plan.wake(), std::nullopt);
  plan.Hold(false);
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, Broken(), 90, !kHadRoom));
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, Broken(), 120, !kHadRoom));
}

TEST(Plan, AHolderThatHasRoomIsGivenTimeUntilItTakesNoneForLong) {
  Plan plan = PlanOfRoom();
  plan.SetTarget(kTen, Owed({"b"}, {0}), false);
  const absl::Status busy = Error(ErrorCode::BUSY, "4 transfers are under way here");
  const absl::Status anew = Error(ErrorCode::FENCED, "the other agent has begun anew");
  for (int at = 10; at < 610; at += 10)
    EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, at % 20 == 0 ? busy : anew, at, kHadRoom)) << at;
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, busy, 610, kHadRoom));
  EXPECT_EQ(plan.last_error(),
            Error(ErrorCode::BUSY, "node b has taken no copy of rank 0 for 0 s: 4 transfers are under way here"));
}

TEST(Plan, RoomExcusesNoOtherFailure) {
  Plan plan = PlanOfRoom();
  plan.SetTarget(kTen, Owed({"b"}, {0}), false);
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, Broken(), 10, kHadRoom));
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, Broken(), 39, kHadRoom));
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, Broken(), 40, kHadRoom));
}

TEST(Plan, WithARoomThatIsTakenBackItIsOverdueAsWithoutOne) {
  Plan plan = PlanOfRoom();
  plan.SetTarget(kTen, Owed({"b"}, {0}), false);
  const absl::Status busy = Error(ErrorCode::BUSY, "no slot is free yet");
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 10, !kHadRoom));
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 35, kHadRoom)) << "here its time begins anew";
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 45, !kHadRoom));
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 74, !kHadRoom));
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, busy, 75, !kHadRoom));
}

TEST(Plan, AHolderThatTakesOtherCopiesIsWaitedForLonger) {
  Plan plan = PlanOfRoom();
  plan.SetTarget(kTen, Owed({"b", "c"}, {0, 1}), false);
  const absl::Status busy = Error(ErrorCode::BUSY, "4 transfers are under way here");
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 10, kHadRoom));
  EXPECT_FALSE(EndsOverdue(plan, {0, "c"}, busy, 10, kHadRoom));
  EXPECT_FALSE(EndsOverdue(plan, {1, "b"}, absl::OkStatus(), 500, kHadRoom));
  EXPECT_TRUE(EndsOverdue(plan, {0, "c"}, busy, 610, kHadRoom)) << "this one has taken none";
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 620, kHadRoom));
  EXPECT_FALSE(EndsOverdue(plan, {1, "b"}, absl::OkStatus(), 700, kHadRoom)) << "it was asked whether it has it still";
  EXPECT_FALSE(EndsOverdue(plan, {0, "b"}, busy, 1219, kHadRoom));
  EXPECT_TRUE(EndsOverdue(plan, {0, "b"}, busy, 1220, kHadRoom)) << "which took nothing";
}

TEST(Plan, ANewTargetCancelsTheOldAndWaitsForItsEnd) {
  Plan plan;
  plan.SetTarget(kTen, Owed({"b"}, {0}), kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 10"));
  plan.SetTarget(kTwenty, Owed({"b"}, {0}), kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("cancel 0 to b step 10"));
  EXPECT_THAT(Told(plan), IsEmpty()) << "once";
  plan.Ended({0, "b"}, kTen, Error(ErrorCode::CANCELLED, "cancelled"), Nanos(0));
  EXPECT_TRUE(plan.last_error().ok()) << "nobody needs to know";
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 20")) << "without a pause";
}

TEST(Plan, ALateSuccessOfTheOldTargetIsNotTheNewOnes) {
  Plan plan;
  plan.SetTarget(kTen, Owed({"b"}, {0}), kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 10"));
  plan.SetTarget(kTwenty, Owed({"b"}, {0}), kCounted);
  plan.Ended({0, "b"}, kTen, absl::OkStatus(), Nanos(0));
  EXPECT_EQ(plan.count().done, 0u);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 20"));
}

TEST(Plan, AfterTheLastTargetTheNextOneIsCopiedAnew) {
  Plan plan;
  plan.SetTarget(kTen, Owed({"b"}, {0}), kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 10"));
  plan.Ended({0, "b"}, kTen, absl::OkStatus(), Nanos(0));
  plan.SetTarget({}, Owed({"b"}, {0}), kCounted);
  EXPECT_THAT(Told(plan), IsEmpty());
  plan.SetTarget(kTwenty, Owed({"b"}, {0}), kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 20"));
}

TEST(Plan, AnotherHolderGetsWhatTheOldOneHad) {
  Plan plan;
  plan.SetTarget(kTen, Owed({"b", "c"}, {0}), kCounted);
  EXPECT_EQ(Told(plan).size(), 2u);
  plan.Ended({0, "b"}, kTen, absl::OkStatus(), Nanos(0));
  plan.SetTarget(kTen, Owed({"b", "d"}, {0}), kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("cancel 0 to c step 10", "start 0 to d step 10"));
  plan.Ended({0, "c"}, kTen, Broken(), Nanos(0));
  EXPECT_TRUE(plan.last_error().ok());
  EXPECT_THAT(Told(plan, milliseconds(60'000)), IsEmpty());
  EXPECT_EQ(plan.count().owed, 2u);
}

TEST(Plan, ARankThatLostItsSnapshotOwesNothing) {
  Plan plan;
  plan.SetTarget(kTen, Owed({"b"}, {0, 1}), kCounted);
  EXPECT_EQ(Told(plan).size(), 2u);
  plan.SetTarget(kTen, Owed({"b"}, {1}), kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("cancel 0 to b step 10"));
  plan.SetTarget(kTen, Owed({"b"}, {0, 1}), kCounted);
  plan.Ended({0, "b"}, kTen, Broken(), Nanos(0));
  EXPECT_THAT(Told(plan, milliseconds(200)), ElementsAre("start 0 to b step 10")) << "it was not lost after all";
}

// Rank 0's copy was there; its holder lost its memory before the last rank's copy came. The coordinator waits for both.
TEST(Plan, UntilAllAreCountedWhatIsDoneIsAskedForAgain) {
  Plan plan({milliseconds(100), milliseconds(300)});
  plan.SetTarget(kTen, Owed({"b"}, {0}), !kCounted);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 10"));
  plan.Ended({0, "b"}, kTen, absl::OkStatus(), Nanos(0));
  EXPECT_EQ(plan.wake(), milliseconds(300));
  EXPECT_THAT(Told(plan, milliseconds(300) - Nanos(1)), IsEmpty());
  EXPECT_THAT(Told(plan, milliseconds(300)), ElementsAre("start 0 to b step 10"));
  plan.Ended({0, "b"}, kTen, absl::OkStatus(), milliseconds(300));
  plan.SetTarget(kTen, Owed({"b"}, {0}), kCounted);
  EXPECT_FALSE(plan.wake().has_value());
  EXPECT_THAT(Told(plan, milliseconds(60'000)), IsEmpty());
}

TEST(Plan, WhatWasNotOrderedIsNotBelieved) {
  Plan plan;
  plan.Ended({0, "b"}, kTen, absl::OkStatus(), Nanos(0));
  plan.SetTarget(kTen, Owed({"b"}, {0}), kCounted);
  plan.Ended({0, "b"}, kTen, absl::OkStatus(), Nanos(0));
  EXPECT_EQ(plan.count().done, 0u);
  EXPECT_THAT(Told(plan), ElementsAre("start 0 to b step 10"));
}

}  // namespace
}  // namespace ckptd::protect
