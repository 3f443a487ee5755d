// Copies on their way out: what is asked of the holder, in which order, and what stays pinned meanwhile. The other
// node is the test; time stands still until it moves it.
#include "daemon/protect/copy_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/copy_sender_fixture.h"
#include "daemon/region/region_test_util.h"

namespace ckptd::protect {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(CopySenderTest, OffersMovesAndSealsAndKeepsTheSlotUntilThen) {
  Protect(10);
  ASSERT_EQ(calls_.offers.size(), 1u);
  EXPECT_EQ(calls_.offers[0].peer, "b");
  EXPECT_EQ(calls_.offers[0].request.copy().rank(), 7u);
  EXPECT_EQ(calls_.offers[0].request.user(), "1000");
  const FakeCopyCalls::Moved sent = Begin();
  EXPECT_EQ(sent.order.name.slot, 3u);
  EXPECT_THAT(sent.move->ready, ElementsAre(std::pair(0, 1), std::pair(1, 2), std::pair(2, 3)));
  EXPECT_EQ(pins_, 1);
  sent.done(absl::OkStatus());
  EXPECT_TRUE(calls_.move_exists) << "this may be its own call";
  const auto seal = Take(calls_.seals);
  EXPECT_EQ(seal.request.root_crc(), region::RootCrc(std::vector<uint32_t>{1, 2, 3}));
  EXPECT_THAT(ended_, IsEmpty()) << "the holder has not said that it has verified it";
  EXPECT_EQ(pins_, 1);
  seal.answer(v1::SealResponse());
  Settle();
  EXPECT_THAT(ended_, ElementsAre(absl::StrCat("OK ", region::kTestSlotBytes)));
  EXPECT_EQ(pins_, 0);
  EXPECT_FALSE(calls_.move_exists);
  EXPECT_EQ(sender_->plan().count().done, 1u);
  Protect(10, 10);
  Pass(seconds(60));
  EXPECT_TRUE(calls_.offers.empty());
}

// Its snapshot is still here, and the holder would take it from nobody else than from where the rank is now.
TEST_F(CopySenderTest, ARankThatIsOnAnotherNodeNowIsThatNodesMatter) {
  Protect(10, 0, "c");
  EXPECT_TRUE(calls_.offers.empty());
  EXPECT_EQ(sender_->plan().count().owed, 0u);
  Protect(10, 0, "a");
  EXPECT_EQ(calls_.offers.size(), 1u);
  Protect(10, 0, "c");
  EXPECT_EQ(sender_->plan().count().owed, 0u);
}

// A restore needs the same links, and the same memory of the node that took the place of the one that was lost.
TEST_F(CopySenderTest, WhileRanksLoadNothingIsBegun) {
  Protect(10, 0, "a", v1::State::LOAD);
  Pass(seconds(60));
  EXPECT_TRUE(calls_.offers.empty());
  Protect(10, 0, "a", v1::State::RUN);
  EXPECT_EQ(calls_.offers.size(), 1u);
}

TEST_F(CopySenderTest, WhatMovesAsRanksLoadGoesOn) {
  Protect(10, 0, "a", v1::State::RUN);
  const FakeCopyCalls::Moved sent = Begin();
  Protect(10, 0, "a", v1::State::LOAD);
  EXPECT_FALSE(sent.move->cancelled);
  sent.done(absl::OkStatus());
  Take(calls_.seals).answer(v1::SealResponse());
  EXPECT_EQ(sender_->plan().count().done, 1u);
}

// Nobody was asked meanwhile.
TEST_F(CopySenderTest, LoadingIsNoTimeThatAHolderHasNotTakenACopy) {
  Protect(10, 0, "a", v1::State::RUN);
  Take(calls_.offers).answer(Error(ErrorCode::BUSY, "no slot is free yet"));
  Protect(10, 0, "a", v1::State::LOAD);
  Pass(seconds(100));
  Protect(10, 0, "a", v1::State::RUN);
  Take(calls_.offers).answer(Error(ErrorCode::BUSY, "no slot is free yet"));
  EXPECT_THAT(refused_, IsEmpty());
}

// Of an image of three chunks, to the other four of its group: a chunk to each of three, and nothing to the last, who
// has to know of the image all the same.
TEST_F(CopySenderTest, WithParityEachOfTheOthersGetsItsBlock) {
  auto state = std::make_shared<v1::State>();
  state->set_job("gpt");
  state->set_attempt(1);
  state->set_user("1000");
  state->set_parity(1);
  v1::HolderGroup* group = state->add_groups();
  for (Rank member = 0; member < 5; ++member) {
    group->add_agents(std::string(1, static_cast<char>('a' + member)));
    v1::RankClaim* claim = state->mutable_decision()->add_ranks();
    claim->set_rank(7 + member);
    claim->set_agent(group->agents(static_cast<int>(member)));
  }
  SetRef({1, 10}, state->mutable_protecting());
  sender_->OnState(state);
  Settle();
  ASSERT_EQ(calls_.offers.size(), 4u);
  for (uint32_t stripe = 1; stripe <= 4; ++stripe) {
    const auto offer = Take(calls_.offers);
    EXPECT_EQ(offer.peer, group->agents(static_cast<int>(stripe)));
    EXPECT_EQ(offer.request.parity().stripe(), stripe);
    EXPECT_THAT(offer.request.parity().ranks(), ElementsAre(7, 8, 9, 10, 11));
    offer.answer(TokenFor(stripe));
    if (stripe < 4) {
      const FakeCopyCalls::Moved sent = Take(calls_.sent);
      EXPECT_EQ(sent.order.image_bytes, region::kTestChunkBytes);
      EXPECT_THAT(sent.move->ready, ElementsAre(std::pair(0, stripe))) << "the checksum of just this chunk";
      sent.done(absl::OkStatus());
    }
    EXPECT_TRUE(calls_.sent.empty());
    const auto seal = Take(calls_.seals);
    EXPECT_EQ(seal.request.parity().stripe(), stripe);
    EXPECT_THAT(seal.request.record().chunk_crc(), ElementsAre(1, 2, 3)) << "of the whole image";
    seal.answer(v1::SealResponse());
    Settle();
  }
  EXPECT_EQ(sender_->plan().count().done, 4u);
  EXPECT_EQ(pins_, 0);
}

TEST_F(CopySenderTest, AMoveThatFailsIsNotSealed) {
  Protect(10);
  const FakeCopyCalls::Moved sent = Begin();
  sent.done(Error(ErrorCode::CORRUPT, "chunk 1"));
  Settle();
  EXPECT_TRUE(calls_.seals.empty());
  EXPECT_EQ(pins_, 0);
  EXPECT_THAT(ended_, ElementsAre(absl::StrCat("CORRUPT ", region::kTestSlotBytes)));
  EXPECT_TRUE(calls_.offers.empty());
  Pass(milliseconds(200));
  EXPECT_EQ(calls_.offers.size(), 1u) << "tried again";
}

TEST_F(CopySenderTest, AHolderThatHasNoRoomYetIsAskedAgainAndIsNoFailure) {
  Protect(10);
  Take(calls_.offers).answer(Error(ErrorCode::BUSY, "no slot is free yet"));
  Settle();
  EXPECT_THAT(ended_, IsEmpty());
  Pass(milliseconds(200));
  Take(calls_.offers).answer(Error(ErrorCode::LAYOUT_PREPARING, "memory is prepared"));
  Settle();
  Pass(milliseconds(400));
  EXPECT_EQ(calls_.offers.size(), 1u);
}

// It is said of each step at once, not only when the holder is asked again: training needs the slot.
TEST_F(CopySenderTest, AHolderThatHasNoMemoryKeepsNoStep) {
  sealed_[20] = sealed_[30] = {7};
  Protect(10);
  Take(calls_.offers).answer(Error(ErrorCode::BUSY, "no slot is free yet"));
  Settle();
  EXPECT_THAT(refused_, IsEmpty()) << "this passes";
  Pass(milliseconds(200));
  Take(calls_.offers).answer(Error(ErrorCode::QUOTA_EXCEEDED, "peers.memory is 1.0 MiB"));
  Settle();
  EXPECT_THAT(refused_, ElementsAre(10));
  Protect(20);
  EXPECT_THAT(refused_, ElementsAre(10, 20));
  Pass(milliseconds(400));
  const FakeCopyCalls::Moved sent = Begin();
  sent.done(absl::OkStatus());
  Take(calls_.seals).answer(v1::SealResponse());
  Protect(30);
  EXPECT_THAT(refused_, ElementsAre(10, 20)) << "it has some now";
}

// For ever busy, or its memory is never ready: of each step it is as one that refuses, once it has said so, until it
// takes one.
TEST_F(CopySenderTest, AHolderThatHasNoRoomForLongKeepsNoStepEither) {
  sealed_[20] = sealed_[30] = {7};
  Protect(10);
  for (Nanos passed(0); refused_.empty() && passed < seconds(60); passed += seconds(1)) {
    if (!calls_.offers.empty()) Take(calls_.offers).answer(Error(ErrorCode::LAYOUT_PREPARING, "memory is prepared"));
    Pass(seconds(1));
  }
  EXPECT_THAT(refused_, ElementsAre(10));
  EXPECT_EQ(CodeOf(sender_->plan().last_error()), ErrorCode::LAYOUT_PREPARING) << "status names it";
  EXPECT_GE(clock_.Monotonic(), seconds(30));
  Protect(20);
  Take(calls_.offers).answer(Error(ErrorCode::LAYOUT_PREPARING, "memory is prepared"));  // of step 10
  Settle();
  EXPECT_THAT(refused_, ElementsAre(10)) << "it may have room by now";
  Take(calls_.offers).answer(Error(ErrorCode::LAYOUT_PREPARING, "memory is prepared"));
  Settle();
  EXPECT_THAT(refused_, ElementsAre(10, 20)) << "training has waited already";
  Pass(seconds(1));
  const FakeCopyCalls::Moved sent = Begin();
  sent.done(absl::OkStatus());
  Take(calls_.seals).answer(v1::SealResponse());
  Settle();
  EXPECT_TRUE(sender_->plan().last_error().ok());
  Protect(30);
  EXPECT_THAT(refused_, ElementsAre(10, 20)) << "it has taken one";
}

// One that was away, or whose memory was long in the making.
TEST_F(CopySenderTest, AHolderThatHasRoomAgainIsWaitedForAgain) {
  sealed_[20] = {7};
  Protect(10);
  for (Nanos passed(0); refused_.empty() && passed < seconds(60); passed += seconds(1)) {
    if (!calls_.offers.empty()) Take(calls_.offers).answer(Error(ErrorCode::AGENT_UNREACHABLE, "node b is silent"));
    Pass(seconds(1));
  }
  EXPECT_THAT(refused_, ElementsAre(10));
  Protect(20);
  Pass(seconds(10));
  for (int i = 0; i < 5; ++i) {
    ASSERT_FALSE(calls_.offers.empty());
    const FakeCopyCalls::Moved sent = Begin();
    Pass(seconds(10));
    sent.done(Error(ErrorCode::BUSY, "4 transfers are under way here; dial again later"));
    Pass(seconds(1));
  }
  EXPECT_THAT(refused_, ElementsAre(10));
}

// Others' copies have its threads: each offer gets a token, and each connection is turned away.
TEST_F(CopySenderTest, AHolderThatHasRoomAndServesOthersFirstIsNotRefusing) {
  Protect(10);
  const auto turned_away = [this] {
    ASSERT_FALSE(calls_.offers.empty());
    const FakeCopyCalls::Moved sent = Begin();
    Pass(seconds(10));
    sent.done(Error(ErrorCode::BUSY, "4 transfers are under way here; dial again later"));
    Pass(seconds(1));
  };
  while (clock_.Monotonic() < seconds(120)) ASSERT_NO_FATAL_FAILURE(turned_away());
  EXPECT_THAT(refused_, IsEmpty());
  EXPECT_TRUE(sender_->plan().last_error().ok()) << sender_->plan().last_error();
  while (refused_.empty() && clock_.Monotonic() < seconds(700)) ASSERT_NO_FATAL_FAILURE(turned_away());
  EXPECT_THAT(refused_, ElementsAre(10)) << "training does not wait for ever";
  EXPECT_GE(clock_.Monotonic(), seconds(600));
  EXPECT_EQ(CodeOf(sender_->plan().last_error()), ErrorCode::BUSY) << "status names it";
}

// Only that its threads are busy is excused by a token: here the bytes have no way.
TEST_F(CopySenderTest, AHolderThatGivesTokensAndIsNotReachedKeepsNoStep) {
  Protect(10);
  while (refused_.empty() && clock_.Monotonic() < seconds(60)) {
    ASSERT_FALSE(calls_.offers.empty());
    Begin().done(Error(ErrorCode::TIMEOUT, "5 connections in a row ended before a chunk was verified"));
    Pass(seconds(10));
  }
  EXPECT_THAT(refused_, ElementsAre(10));
  EXPECT_LE(clock_.Monotonic(), seconds(41));
}

// It waited here for longer than its holder keeps the place of one that does not come.
TEST_F(CopySenderTest, ATransferThatItsHolderForgotIsNoRefusal) {
  Protect(10);
  for (uint32_t slot = 1; clock_.Monotonic() < seconds(300); ++slot) {
    Take(calls_.offers).answer(TokenFor(slot));
    const FakeCopyCalls::Moved sent = Take(calls_.sent);
    Pass(seconds(65));
    absl::Status renewed;
    sent.order.renew([&](const absl::StatusOr<transport::TransferToken>& answer) { renewed = answer.status(); });
    Take(calls_.offers).answer(TokenFor(slot + 1));
    ASSERT_EQ(CodeOf(renewed), ErrorCode::FENCED);
    sent.done(renewed);
    Pass(seconds(10));
  }
  EXPECT_THAT(refused_, IsEmpty());
}

TEST_F(CopySenderTest, WithoutLinksItIsTriedAgainUntilThereAreSome) {
  linked_ = false;
  Protect(10);
  Pass(milliseconds(200));
  EXPECT_EQ(pins_, 0);
  linked_ = true;
  Pass(seconds(10));
  EXPECT_EQ(calls_.offers.size(), 1u);
}

TEST_F(CopySenderTest, AnotherStepWaitsUntilTheOldMoveHasEnded) {
  sealed_[20] = {7};
  Protect(10);
  const FakeCopyCalls::Moved sent = Begin();
  Protect(20);
  EXPECT_TRUE(sent.move->cancelled);
  EXPECT_TRUE(calls_.offers.empty());
  sent.done(Error(ErrorCode::CANCELLED, "cancelled here"));
  Settle();
  ASSERT_EQ(calls_.offers.size(), 1u);
  EXPECT_EQ(calls_.offers[0].request.copy().snapshot().step(), 20u);
  EXPECT_EQ(pins_, 1);
}

TEST_F(CopySenderTest, AnOfferThatIsAnsweredTooLateMovesNothing) {
  sealed_[20] = {7};
  Protect(10);
  const auto late = Take(calls_.offers);
  Protect(20);
  late.answer(TokenFor(3));
  Settle();
  EXPECT_TRUE(calls_.sent.empty());
  ASSERT_EQ(calls_.offers.size(), 1u);
  EXPECT_EQ(calls_.offers[0].request.copy().snapshot().step(), 20u);
}

// The holder's memory went after it had said that it has the copy; the coordinator waits for it.
TEST_F(CopySenderTest, WhatTheCoordinatorDoesNotCountIsOfferedAgain) {
  Protect(10);
  Begin().done(absl::OkStatus());
  Take(calls_.seals).answer(v1::SealResponse());
  Pass(seconds(10));
  v1::OfferResponse have;
  have.set_have(true);
  Take(calls_.offers).answer(have);
  Settle();
  EXPECT_THAT(ended_, ElementsAre(absl::StrCat("OK ", region::kTestSlotBytes))) << "it was copied once";
  Pass(seconds(10));
  const FakeCopyCalls::Moved sent = Begin();
  EXPECT_NE(sent.move, nullptr) << "it is not there any more";
}

// With the last pin the slot is free, which is news for whoever asks what is sealed: in the middle of the end of a
// copy.
TEST_F(CopySenderTest, WhatAPinSetsFreeMayBeginTheNextCopy) {
  Protect(10);
  const FakeCopyCalls::Moved sent = Begin();
  unpinned_ = [this] {
    unpinned_ = nullptr;
    sealed_[10].insert(8);
    sender_->Refresh();
  };
  sent.done(Error(ErrorCode::TIMEOUT, "silent"));
  Settle();
  ASSERT_EQ(calls_.offers.size(), 1u);
  EXPECT_EQ(calls_.offers[0].request.copy().rank(), 8u);
  EXPECT_EQ(pins_, 1);
  EXPECT_TRUE(sender_->busy());
  const FakeCopyCalls::Moved next = Begin();
  EXPECT_NE(next.move, nullptr) << "the answer found its copy";
}

TEST_F(CopySenderTest, NothingIsSentAfterItsEnd) {
  sealed_[10] = {7, 8};
  Protect(10);
  const auto offer = Take(calls_.offers);
  const FakeCopyCalls::Moved sent = Begin();
  sent.done(absl::OkStatus());
  const auto seal = Take(calls_.seals);
  sender_->Stop();
  EXPECT_EQ(pins_, 0);
  EXPECT_FALSE(calls_.move_exists);
  offer.answer(TokenFor(4));
  seal.answer(Error(ErrorCode::TIMEOUT, "silent"));
  Pass(seconds(60));
  EXPECT_TRUE(calls_.offers.empty());
  EXPECT_TRUE(calls_.sent.empty());
  EXPECT_EQ(pins_, 0);
}

// The holder began anew, so the token is for a transfer that this one cannot become.
TEST_F(CopySenderTest, ATransferThatItsHolderForgotEndsAtOnce) {
  Protect(10);
  const FakeCopyCalls::Moved sent = Begin();
  absl::StatusOr<transport::TransferToken> token = Error(ErrorCode::INTERNAL, "no answer");
  sent.order.renew([&](absl::StatusOr<transport::TransferToken> answer) { token = std::move(answer); });
  Take(calls_.offers).answer(TokenFor(3, 'u'));
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ((*token)[0], 'u');
  sent.order.renew([&](absl::StatusOr<transport::TransferToken> answer) { token = std::move(answer); });
  Take(calls_.offers).answer(TokenFor(1));
  EXPECT_EQ(CodeOf(token.status()), ErrorCode::FENCED);
}

// Between two connections: the transport would ask on and on, and the plan take the copy for one that is on its way.
TEST_F(CopySenderTest, AHolderThatIsBusyForTheNextConnectionIsThePlansMatter) {
  Protect(10);
  for (Nanos passed(0); passed < seconds(40); passed += seconds(1)) {
    Take(calls_.offers).answer(TokenFor(3));
    Settle();
    ASSERT_FALSE(calls_.sent.empty());
    EXPECT_LT(calls_.sent[0].order.busy_patience, seconds(30)) << "nor if it is busy when it is dialled";
    Take(calls_.sent).order.renew([](const absl::StatusOr<transport::TransferToken>&) { ADD_FAILURE() << "goes on"; });
    Take(calls_.offers).answer(Error(ErrorCode::BUSY, "no slot is free yet"));
    Settle();
    EXPECT_FALSE(calls_.move_exists);
    EXPECT_EQ(sender_->plan().count().under_way, 0u);
    EXPECT_EQ(pins_, 0);
    EXPECT_TRUE(calls_.offers.empty()) << "not at once";
    Pass(seconds(1));
  }
  EXPECT_EQ(CodeOf(sender_->plan().last_error()), ErrorCode::BUSY) << "status names it";
  EXPECT_THAT(refused_, ::testing::Contains(10)) << "and its slot is not kept for it";
  EXPECT_THAT(ended_, IsEmpty()) << "it is no failure";
  const FakeCopyCalls::Moved sent = Begin();
  sent.done(absl::OkStatus());
  Take(calls_.seals).answer(v1::SealResponse());
  Settle();
  EXPECT_EQ(sender_->plan().count().done, 1u);
  EXPECT_TRUE(sender_->plan().last_error().ok());
}

}  // namespace
}  // namespace ckptd::protect
