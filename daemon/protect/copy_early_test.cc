// Captures that go to their holder before they are sealed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "daemon/protect/copy_sender_fixture.h"

namespace ckptd::protect {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Of the step, whose record has the checksums 1, 2, 3.
class CopyEarlyTest : public CopySenderTest {
 protected:
  CopyEarlyTest() {
    region::LayoutSpec spec = region::TestSpec();
    spec.rank = 7;
    spec.world = 16;
    head_ = *region::MakeCtlHead(spec, 1, 1, 1);
  }
  void Capture(StepId step, const std::vector<uint32_t>& crcs) {
    sender_->Captured({7, {1, step}, head_, file_, crcs});
    Settle();
  }
  void Seal(StepId step) {
    sealed_[step] = {7};
    Protect(step, 10);
  }
  // Step 10 is with its holder, and counted.
  void Counted() {
    Protect(10);
    const FakeCopyCalls::Moved sent = Begin();
    sent.done(absl::OkStatus());
    Take(calls_.seals).answer(v1::SealResponse());
    Protect(10, 10);
    Settle();
    ended_.clear();
  }
  // The plan's own copy of the step goes its way.
  void ComesInFull(StepId step) {
    const FakeCopyCalls::Moved sent = Begin();
    ASSERT_NE(sent.move, nullptr);
    EXPECT_EQ(sent.order.name.snapshot.step, step);
    EXPECT_THAT(sent.move->ready, ElementsAre(std::pair(0, 1), std::pair(1, 2), std::pair(2, 3)));
    EXPECT_EQ(pins_, 1);
  }

  region::CtlHead head_;
};

TEST_F(CopyEarlyTest, GoesOutChunkByChunkAndIsSealedWhenItIsTheStepToProtect) {
  Counted();
  Capture(20, {1});
  const FakeCopyCalls::Moved sent = Begin();
  EXPECT_EQ(sent.order.name.snapshot.step, 20u);
  EXPECT_EQ(sent.order.image_bytes, region::kTestSlotBytes);
  EXPECT_THAT(sent.move->ready, ElementsAre(std::pair(0, 1)));
  EXPECT_EQ(pins_, 0) << "nothing is sealed";
  Capture(20, {1, 2, 3});
  EXPECT_THAT(sent.move->ready, ElementsAre(std::pair(0, 1), std::pair(1, 2), std::pair(2, 3)));
  EXPECT_TRUE(calls_.offers.empty());
  sent.done(absl::OkStatus());
  Settle();
  EXPECT_TRUE(calls_.seals.empty()) << "its record is not known";
  Seal(20);
  EXPECT_TRUE(calls_.offers.empty());
  EXPECT_EQ(pins_, 1);
  const auto seal = Take(calls_.seals);
  EXPECT_EQ(seal.request.root_crc(), region::RootCrc(std::vector<uint32_t>{1, 2, 3}));
  seal.answer(v1::SealResponse());
  Settle();
  EXPECT_THAT(ended_, ElementsAre(absl::StrCat("OK ", region::kTestSlotBytes)));
  EXPECT_EQ(pins_, 0);
}

TEST_F(CopyEarlyTest, TheFirstStepOfAJobGoesEarlyToo) {
  Protect(0);
  Capture(20, {1});
  EXPECT_EQ(calls_.offers.size(), 1u);
}

TEST_F(CopyEarlyTest, WhatIsSealedBeforeItIsAllThereIsSentToTheEnd) {
  Counted();
  Capture(20, {1});
  const FakeCopyCalls::Moved sent = Begin();
  Seal(20);
  EXPECT_THAT(sent.move->ready, ElementsAre(std::pair(0, 1), std::pair(1, 2), std::pair(2, 3)));
  EXPECT_TRUE(calls_.seals.empty());
  sent.done(absl::OkStatus());
  Take(calls_.seals).answer(v1::SealResponse());
  Settle();
  EXPECT_THAT(ended_, ElementsAre(absl::StrCat("OK ", region::kTestSlotBytes)));
}

TEST_F(CopyEarlyTest, AnOfferThatIsAnsweredAfterTheSealGoesOn) {
  Counted();
  Capture(20, {1});
  Seal(20);
  ASSERT_EQ(calls_.offers.size(), 1u) << "not asked twice";
  ComesInFull(20);
}

// A holder that makes room for a newer step would give up what it has of that one.
TEST_F(CopyEarlyTest, NothingIsEarlyBeforeTheStepBeforeIsCounted) {
  Protect(10);
  calls_.offers.clear();
  Capture(20, {1});
  EXPECT_TRUE(calls_.offers.empty());
}

TEST_F(CopyEarlyTest, NothingIsEarlyWhileRanksLoad) {
  Counted();
  Protect(10, 10, "a", v1::State::LOAD);
  Capture(20, {1});
  EXPECT_TRUE(calls_.offers.empty());
  Protect(10, 10, "a", v1::State::RUN);
  Capture(20, {1});
  EXPECT_EQ(calls_.offers.size(), 1u);
}

TEST_F(CopyEarlyTest, WhereNobodyKeepsCopiesNothingIsAsked) {
  EXPECT_FALSE(sender_->sends_early()) << "no STATE yet";
  Capture(20, {1});
  EXPECT_TRUE(calls_.offers.empty());
}

TEST_F(CopyEarlyTest, ACaptureThatIsGivenUpLetsGo) {
  Counted();
  Capture(20, {1});
  const FakeCopyCalls::Moved sent = Begin();
  EXPECT_TRUE(calls_.move_exists);
  sender_->GivenUp(7, {1, 20});
  Settle();
  EXPECT_FALSE(calls_.move_exists);
  EXPECT_THAT(ended_, IsEmpty());
  Capture(30, {1});
  EXPECT_EQ(Take(calls_.offers).request.copy().snapshot().step(), 30u);
}

TEST_F(CopyEarlyTest, AnotherCaptureTakesItsPlace) {
  Counted();
  Capture(20, {1});
  const FakeCopyCalls::Moved sent = Begin();
  Capture(30, {1});
  EXPECT_FALSE(calls_.move_exists);
  EXPECT_EQ(Take(calls_.offers).request.copy().snapshot().step(), 30u);
}

// It is no failure of the copy, which has not begun: nothing is told, and the plan's comes in its time.
TEST_F(CopyEarlyTest, AHolderWithoutRoomIsAskedAgainAndOneThatRefusesIsNot) {
  Counted();
  Capture(20, {1});
  Take(calls_.offers).answer(Error(ErrorCode::BUSY, "no slot is free yet"));
  Settle();
  Capture(20, {1, 2});
  EXPECT_TRUE(calls_.offers.empty()) << "not at once";
  Pass(milliseconds(200));
  Capture(20, {1, 2, 3});
  Take(calls_.offers).answer(Error(ErrorCode::QUOTA_EXCEEDED, "peers.memory is 1.0 MiB"));
  Settle();
  Pass(milliseconds(400));
  Capture(20, {1, 2, 3});
  EXPECT_TRUE(calls_.offers.empty());
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_THAT(refused_, IsEmpty());
  Seal(20);
  ComesInFull(20);
}

TEST_F(CopyEarlyTest, AMoveThatFailsIsMadeAgainByThePlan) {
  Counted();
  Capture(20, {1});
  const FakeCopyCalls::Moved sent = Begin();
  sent.done(Error(ErrorCode::CORRUPT, "chunk 0"));
  Settle();
  EXPECT_THAT(ended_, IsEmpty());
  Seal(20);
  ComesInFull(20);
}

// A trainer that wrote over its bell: what was told of the chunks is not what was sealed.
TEST_F(CopyEarlyTest, OtherChecksumsThanThoseOfTheRecordAreSentAnew) {
  Counted();
  Capture(20, {1, 9});
  const FakeCopyCalls::Moved sent = Begin();
  Seal(20);
  ComesInFull(20);
}

// What the holder was told counts, not what is said of those chunks now.
TEST_F(CopyEarlyTest, AChecksumThatIsToldOtherwiseLaterIsNotTheOneThatWasSent) {
  Counted();
  Capture(20, {9});
  const FakeCopyCalls::Moved sent = Begin();
  Capture(20, {1, 2});
  EXPECT_THAT(sent.move->ready, ElementsAre(std::pair(0, 9), std::pair(1, 2)));
  Seal(20);
  ComesInFull(20);
}

// It was sealed while nobody knew yet whether all ranks have it.
TEST_F(CopyEarlyTest, AnOlderStepThatIsToBeProtectedGoesFirst) {
  Counted();
  Capture(20, {1});
  const FakeCopyCalls::Moved sent = Begin();
  Seal(15);
  EXPECT_FALSE(calls_.move_exists);
  ComesInFull(15);
  Capture(20, {1, 2});
  EXPECT_TRUE(calls_.offers.empty()) << "before that one is counted";
}

TEST_F(CopyEarlyTest, AnAnswerToWhatWasReplacedIsNotTakenForThatOfTheSameStep) {
  Counted();
  Capture(20, {1});
  const auto early = Take(calls_.offers);
  Capture(30, {1});
  (void)Take(calls_.offers);
  Seal(20);
  early.answer(v1::OfferResponse());
  Settle();
  EXPECT_FALSE(calls_.move_exists) << "its token is of a copy that the holder has given up";
  ComesInFull(20);
}

// What the attempt before captured is nobody's.
TEST_F(CopyEarlyTest, AnotherAttemptLetsGo) {
  Counted();
  Capture(20, {1});
  const FakeCopyCalls::Moved sent = Begin();
  auto state = std::make_shared<v1::State>();
  state->set_attempt(2);
  state->set_copies(2);
  sender_->OnState(state);
  Settle();
  EXPECT_FALSE(calls_.move_exists);
}

}  // namespace
}  // namespace ckptd::protect
