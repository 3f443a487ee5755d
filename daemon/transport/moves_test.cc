// Transfers that one end dials again and again and the other serves (moves_fixture.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "daemon/transport/moves_fixture.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_F(MovesTest, OneConnectionIsEnough) {
  Send(one_);
  EXPECT_TRUE(Wait(one_.end).ok()) << Wait(one_.end);
  EXPECT_TRUE(Wait(one_.served_end).ok()) << Wait(one_.served_end);
  EXPECT_EQ(*one_.place, *image_);
  EXPECT_EQ(dials_, 1);
}

TEST_F(MovesTest, EachFurtherConnectionHasAnotherTokenAndBringsWhatIsMissing) {
  cut_after_ = 30;
  Send(one_);
  EXPECT_TRUE(Wait(one_.end).ok()) << Wait(one_.end);
  EXPECT_TRUE(Wait(one_.served_end).ok()) << Wait(one_.served_end);
  EXPECT_EQ(*one_.place, *image_);
  EXPECT_EQ(one_.verified, kMoveBytes / kMoveChunk) << "each once";
  EXPECT_GT(dials_, 3);
  dialling_.Do([this] {
    for (size_t i = 0; i < tokens_.size(); ++i) EXPECT_EQ(tokens_[i], i + 1);
  });
}

TEST_F(MovesTest, VainConnectionsEndIt) {
  cut_after_ = 1;
  Send(one_);
  EXPECT_EQ(CodeOf(Wait(one_.end)), ErrorCode::TIMEOUT) << Wait(one_.end);
  EXPECT_EQ(dials_ - refused_, 5) << "one connection each, and another for those that rested";
}

TEST_F(MovesTest, BusyIsNotInVainAndEndsByTheDeadline) {
  refuse_ = Error(ErrorCode::BUSY, "later");
  Send(one_, milliseconds(400));
  EXPECT_EQ(CodeOf(Wait(one_.end)), ErrorCode::TIMEOUT);
  EXPECT_THAT(std::string(Wait(one_.end).message()), ::testing::HasSubstr("the last error: later"));
  EXPECT_GT(dials_, 8);
}

TEST_F(MovesTest, BusyForTooLongIsTheOwnersMatter) {
  busy_patience_ = milliseconds(100);
  refuse_ = Error(ErrorCode::BUSY, "later");
  Send(one_);
  EXPECT_EQ(CodeOf(Wait(one_.end)), ErrorCode::BUSY) << Wait(one_.end);
  EXPECT_GT(dials_, 3);
}

// Its own node's slots are others' for longer than that: the other end was asked twice, and not for long.
TEST_F(MovesTest, WhatItWaitsForASlotHereIsNotTheOtherEndsBusyTime) {
  busy_patience_ = milliseconds(500);
  refuse_ = Error(ErrorCode::BUSY, "later");
  Send(one_);
  ASSERT_TRUE(Until([this] { return refused_ > 0; }));
  int held = 0;
  dialling_.Do([&] {
    for (int i = 0; i < 2; ++i) shared_->slots->Ask([&held] { ++held; });
  });
  ASSERT_TRUE(Until([&] { return held == 2; }));
  const int before = refused_;
  Wake().WaitUntil(SystemClock().Monotonic() + milliseconds(600));
  EXPECT_EQ(refused_, before);
  dialling_.Do([this] {
    for (int i = 0; i < 2; ++i) shared_->slots->Return();
  });
  ASSERT_TRUE(Until([&] { return refused_ > before; }));
  served_.Do([this] { refuse_ = absl::OkStatus(); });
  EXPECT_TRUE(Wait(one_.end).ok()) << Wait(one_.end);
}

TEST_F(MovesTest, WhatIsFinalIsNotTriedAgain) {
  refuse_ = Error(ErrorCode::SUPERSEDED, "newer ones are here");
  Send(one_);
  EXPECT_EQ(CodeOf(Wait(one_.end)), ErrorCode::SUPERSEDED);
  EXPECT_EQ(dials_, 1);
}

TEST_F(MovesTest, ARenewalThatIsRefusedIsTheEnd) {
  cut_after_ = 30;
  renewal_ = Error(ErrorCode::FENCED, "a newer attempt runs");
  Send(one_);
  EXPECT_EQ(CodeOf(Wait(one_.end)), ErrorCode::FENCED);
  EXPECT_EQ(dials_, 1);
}

TEST_F(MovesTest, WhoeverIsCancelledBetweenConnectionsEndsAtOnce) {
  refuse_ = Error(ErrorCode::BUSY, "later");
  Send(one_);
  one_.move->Cancel();
  EXPECT_EQ(CodeOf(Wait(one_.end)), ErrorCode::CANCELLED);
}

TEST_F(MovesTest, AHandleThatIsGoneSaysNothingAndFreesItsSlot) {
  cut_after_ = 30;
  for (int i = 0; i < 6; ++i) {
    Send(one_);
    dialling_.Do([this] { one_.move.reset(); });
  }
  cut_after_ = UINT64_MAX;
  Send(one_);
  EXPECT_TRUE(Wait(one_.end).ok()) << Wait(one_.end);
}

// A capture that stands still keeps nobody from moving, and goes on where it was.
TEST_F(MovesTest, WhoeverHasNothingToSendGivesTheSlotToOthers) {
  idle_ = milliseconds(50);
  Moved& idle = Another();
  Moved& third = Another();
  Send(one_, seconds(30), 3);
  Send(idle, seconds(30), 3);
  ASSERT_TRUE(Until([&] { return one_.verified == 3 && idle.verified == 3; }));
  const Nanos begin = SystemClock().Monotonic();
  Send(third);
  EXPECT_TRUE(Wait(third.end).ok()) << Wait(third.end);
  EXPECT_LT(SystemClock().Monotonic() - begin, seconds(5)) << "before the other end finds them silent";
  EXPECT_EQ(*third.place, *image_);
  ASSERT_TRUE(Until([&] { return shared_->slots->free() == 2; })) << "nor by the others";
  for (Moved* one : {&one_, &idle}) {
    EXPECT_FALSE(one->end.has_value());
    dialling_.Do([&] {
      for (uint32_t i = 3; i < kMoveChunks; ++i) MakeReady(*one, i);
    });
    EXPECT_TRUE(Wait(one->end).ok()) << Wait(one->end);
    EXPECT_EQ(*one->place, *image_);
    EXPECT_EQ(one->verified, kMoveChunks) << "each once";
  }
  EXPECT_EQ(dials_ - refused_, 5) << "one connection each, and another for those that rested";
}

// The other end of the failed one is stopped, and so its connection is there a second longer. Beside it the new one
// would write to the same memory, and be ended by its end.
TEST_F(MovesTest, WhatFailedIsBegunAnewWhenItsConnectionHasEnded) {
  const auto [stopped, there] = FakeBulk::Connect();
  const auto wake = std::make_shared<Wake>();
  stopped->Watch([wake] { wake->Set(); });
  served_.Do([this, there = there] { EXPECT_TRUE(Begin(one_, there).ok()); });
  stopped->Say(Verified{0, 1});
  for (bool failed = false; !failed;) {
    const auto came = stopped->Take();
    ASSERT_TRUE(came.ok());
    failed = came->has_value() && std::holds_alternative<Stop>(*(*came)->message);
    if (!came->has_value()) wake->WaitUntil(SystemClock().Monotonic() + seconds(5));
  }
  Send(one_);
  EXPECT_TRUE(Wait(one_.end).ok()) << Wait(one_.end);
  EXPECT_EQ(*one_.place, *image_);
  ASSERT_TRUE(Until([this] {
    MutexLock lock(mutex_);
    return one_.served_end.has_value() && one_.served_end->ok();
  }));
  served_.Do([this] { EXPECT_THAT(served_log_, ::testing::ElementsAre("begun", "PROTOCOL", "begun", "OK")); });
  EXPECT_GT(refused_, 0);
}

// It is asked for without a slot.
TEST_F(MovesTest, WhoeverWaitsForItsTokenKeepsNobodyFromMoving) {
  silent_ = true;
  cut_after_ = 30;
  Moved& other = Another();
  Moved& third = Another();
  Send(one_);
  Send(other);
  ASSERT_TRUE(Until([&] { return asks_ == 2; }));
  cut_after_ = UINT64_MAX;
  dialling_.Do([this] { EXPECT_EQ(shared_->slots->free(), 2u); });
  Send(third);
  EXPECT_TRUE(Wait(third.end).ok()) << Wait(third.end);
  EXPECT_EQ(*third.place, *image_);
  EXPECT_FALSE(one_.end.has_value() || other.end.has_value());
}

// Its agent died in the middle of it; the one after it knows of no chunk, and asks for the same.
TEST_F(MovesTest, WhoReadsAndHasLostWhatItHadGetsItAgain) {
  for (const uint64_t cut_after : {uint64_t{30}, UINT64_MAX}) {
    auto [here, there] = FakeBulk::Connect({.cut_after = cut_after});
    served_.Do([this, there = there] { EXPECT_TRUE(moves_->Begin(ServedRead(one_), there).ok()); });
    ReceiveRun reader(SystemClock(), one_.name, shape_, std::get<ServedReceive>(End(one_).end).target, {});
    reader.Drive(*here);
    EXPECT_GT(reader.verified_bytes(), 0u);
    EXPECT_EQ(reader.state(), cut_after == UINT64_MAX ? TransferState::kComplete : TransferState::kRunning)
        << reader.status();
  }
  EXPECT_EQ(*one_.place, *image_);
  EXPECT_TRUE(Wait(one_.served_end).ok()) << Wait(one_.served_end);
}

TEST_F(MovesTest, WithoutAChunkNobodyIsDialled) {
  Send(one_, seconds(30), 0);
  ASSERT_TRUE(Until([&] { return shared_->slots->free() == 2; }));
  EXPECT_EQ(dials_, 0);
  dialling_.Do([&] {
    for (uint32_t i = 0; i < kMoveChunks; ++i) MakeReady(one_, i);
  });
  EXPECT_TRUE(Wait(one_.end).ok()) << Wait(one_.end);
  EXPECT_EQ(*one_.place, *image_);
}

TEST_F(MovesTest, WhoeverRestsMayBeCancelledAndKeepsItsDeadline) {
  Send(one_, seconds(30), 0);
  one_.move->Cancel();
  EXPECT_EQ(CodeOf(Wait(one_.end)), ErrorCode::CANCELLED);
  Moved& late = Another();
  Send(late, milliseconds(100), 0);
  EXPECT_EQ(CodeOf(Wait(late.end)), ErrorCode::TIMEOUT);
}

}  // namespace
}  // namespace ckptd::transport
