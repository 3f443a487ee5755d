// What a node keeps for others: who may ask, what becomes of fills, tokens and pins (copy_keeper_fixture.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "daemon/protect/copy_keeper_fixture.h"

namespace ckptd::protect {
namespace {

using region::CompleteIn;
using region::ContentOf;
using std::chrono::seconds;
using ::testing::ElementsAre;

// ---------------------------------------------------------------------------------------------------------- incoming

TEST_F(CopyKeeperTest, ACopyIsCompleteWhenEveryChunkIsVerifiedAndTheOwnerHasSealedIt) {
  const auto offered = Offer(OfferOf(kTen));
  ASSERT_TRUE(offered.ok()) << offered.status();
  const auto end = Dial(kTen, *offered);
  ASSERT_TRUE(end.ok()) << end.status();
  Arrive(*end, kTen, 2);
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen))), ErrorCode::REFUSED) << "a chunk is missing";
  Arrive(*end, kTen, 3);
  EXPECT_TRUE(keeper_->CopiesOf("gpt").empty());
  EXPECT_EQ(changes_, 0);
  ASSERT_TRUE(Seal(kTen, RootOf(kTen)).ok());
  EXPECT_EQ(changes_, 1) << "the coordinator is to hear of it";
  const auto copies = keeper_->CopiesOf("gpt");
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].rank(), 7u);
  EXPECT_EQ(ToId(copies[0].complete(0)), kTen);
  EXPECT_TRUE(region::IsWhole(store(), spec_, kTen));
  EXPECT_TRUE(Seal(kTen, RootOf(kTen)).ok()) << "who did not hear the answer asks again";
  const auto again = Offer(OfferOf(kTen));
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->have());
}

// What came early is not what was sealed in the end: all of it comes again, or it would never be complete.
TEST_F(CopyKeeperTest, WhatIsNotItsOwnersIsBegunAnew) {
  const auto early = Offer(OfferOf(kTen));
  ASSERT_TRUE(early.ok()) << early.status();
  auto end = Dial(kTen, *early);
  ASSERT_TRUE(end.ok()) << end.status();
  Arrive(*end, kTen, 3);
  end->done(absl::OkStatus());
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen) + 1)), ErrorCode::CORRUPT) << "its owner has other bytes";
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen))), ErrorCode::NOT_FOUND);
  EXPECT_TRUE(keeper_->CopiesOf("gpt").empty());
  EXPECT_FALSE(end->wanted());
  end = absl::CancelledError();
  const auto anew = Offer(OfferOf(kTen));
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_NE(anew->slot(), early->slot());
  end = Dial(kTen, *anew);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen))), ErrorCode::REFUSED) << "nothing of it counts";
  Arrive(*end, kTen, 3);
  EXPECT_TRUE(Seal(kTen, RootOf(kTen)).ok());
  EXPECT_TRUE(region::IsWhole(store(), spec_, kTen));
}

// Both slots are in use: one has the step that is protected, the other the step that is given up for a newer one. The
// newer one gets that slot at once, not when somebody comes to sweep.
TEST_F(CopyKeeperTest, ANewerStepTakesTheSlotOfTheOneThatWasOnItsWay) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  const auto protecting = [](const SnapshotId& id) {
    v1::OfferRequest request = OfferOf(id);
    SetRef(kTen, request.mutable_marks()->mutable_protected_());
    return request;
  };
  ASSERT_TRUE(Offer(protecting(kTwenty)).ok());
  const auto newer = Offer(protecting(kThirty));
  EXPECT_TRUE(newer.ok()) << newer.status();
  EXPECT_THAT(CompleteIn(store()), ElementsAre(kTen));
}

// As long as a thread of the transport may write there, nobody else does.
TEST_F(CopyKeeperTest, ASlotThatIsStillWrittenToIsNotTaken) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  v1::OfferRequest request = OfferOf(kTwenty);
  SetRef(kTen, request.mutable_marks()->mutable_protected_());
  const auto older = Offer(request);
  ASSERT_TRUE(older.ok()) << older.status();
  auto writes = Dial(kTwenty, *older);
  ASSERT_TRUE(writes.ok()) << writes.status();
  request = OfferOf(kThirty);
  SetRef(kTen, request.mutable_marks()->mutable_protected_());
  EXPECT_EQ(CodeOf(Offer(request).status()), ErrorCode::BUSY);
  EXPECT_EQ(CodeOf(std::get<transport::ServedReceive>(writes->end).target.verified(0, 1)), ErrorCode::FENCED);
  writes = absl::CancelledError();
  EXPECT_TRUE(Offer(request).ok());
}

TEST_F(CopyKeeperTest, AnOfferThatIsRepeatedGoesOnWhereItWas) {
  const auto first = Offer(OfferOf(kTen));
  ASSERT_TRUE(first.ok()) << first.status();
  auto end = Dial(kTen, *first);
  ASSERT_TRUE(end.ok()) << end.status();
  Arrive(*end, kTen, 2);
  const auto again = Offer(OfferOf(kTen));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->slot(), first->slot());
  EXPECT_NE(again->token(), first->token());
  EXPECT_EQ(CodeOf(Dial(kTen, *first).status()), ErrorCode::PERMISSION) << "a token opens one connection";
  EXPECT_EQ(std::get<transport::ServedReceive>(Dial(kTen, *again)->end).target.keep,
            std::get<transport::ServedReceive>(end->end).target.keep);
}

// Its owner asks every few seconds, and would fill the memory that was just freed.
TEST_F(CopyKeeperTest, WhatWasGivenUpDoesNotComeBackButTheNextStepIsTaken) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTwenty));
  ASSERT_TRUE(keeper_->GiveUp("gpt").ok());
  EXPECT_EQ(CodeOf(Offer(OfferOf(kTwenty)).status()), ErrorCode::SUPERSEDED);
  EXPECT_EQ(CodeOf(Offer(OfferOf(kTen)).status()), ErrorCode::SUPERSEDED);
  EXPECT_THAT(store().Jobs(), testing::IsEmpty());
  EXPECT_TRUE(Offer(OfferOf(kThirty)).ok());
  ASSERT_TRUE(keeper_->GiveUp("gpt").ok());
}

// The job goes on from it, and it is all that there is until the first new step.
TEST_F(CopyKeeperTest, WhatWasGivenUpIsTakenInANewAttempt) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTwenty));
  ASSERT_TRUE(keeper_->GiveUp("gpt").ok());
  Decide(2, "a");
  Enter(v1::State::RUN);
  EXPECT_TRUE(Offer(OfferOf(kTwenty, 2)).ok());
}

// Rank 7's copies are on another node since the groups changed.
TEST_F(CopyKeeperTest, WhatItIsNotToHoldAnyMoreMakesRoomOnceAllHaveLoaded) {
  keeper_.reset();
  Restart({.dir = {}, .peers_memory = 3 * region::kSlotFile});
  Make();
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  wanted_ = {{region::PeerKind::kCopy, 5}};
  store().MarkDurable("gpt", kThirty);
  v1::OfferRequest request = OfferOf(kThirty);
  request.mutable_copy()->set_rank(5);
  EXPECT_EQ(CodeOf(Offer(request, "c").status()), ErrorCode::QUOTA_EXCEEDED);
  Enter(v1::State::RUN);
  const int changes = changes_;
  const auto offered = Offer(request, "c");
  EXPECT_TRUE(offered.ok()) << offered.status();
  EXPECT_GT(changes_, changes) << "the coordinator is to hear of it";
}

// The rank has another layout since, and there is no memory for both.
TEST_F(CopyKeeperTest, ACopyOfAnOlderLayoutThatNobodyWaitsForMakesRoomForTheNewOne) {
  keeper_.reset();
  Restart({.dir = {}, .peers_memory = 5 * region::kSlotFile / 2});
  Make();
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  v1::OfferRequest request = OfferOf(kThirty);
  request.mutable_layout()->set_header_crc(8);
  wanted_ = {{region::PeerKind::kCopy, 7}};
  Enter(v1::State::RUN);
  EXPECT_EQ(CodeOf(Offer(request).status()), ErrorCode::QUOTA_EXCEEDED) << "there is nothing newer";
  store().MarkDurable("gpt", kTwenty);
  Enter(v1::State::LOAD);
  EXPECT_EQ(CodeOf(Offer(request).status()), ErrorCode::QUOTA_EXCEEDED) << "somebody may need it";
  EXPECT_THAT(CompleteIn(store()), ElementsAre(kTen));
  Enter(v1::State::RUN);
  const int changes = changes_;
  const auto offered = Offer(request);
  EXPECT_TRUE(offered.ok()) << offered.status();
  EXPECT_GT(changes_, changes) << "the coordinator is to hear of it";
}

TEST_F(CopyKeeperTest, WhatNobodyBringsAnyMoreGivesItsSlotBack) {
  const auto offered = Offer(OfferOf(kTen));
  ASSERT_TRUE(offered.ok()) << offered.status();
  auto end = Dial(kTen, *offered);
  ASSERT_TRUE(end.ok());
  Pass(seconds(50));
  Arrive(*end, kTen, 1);
  end = absl::CancelledError();
  Pass(seconds(55));
  EXPECT_EQ(store().List().size(), 1u) << "a chunk came meanwhile";
  Pass(seconds(30));
  EXPECT_TRUE(store().List().empty());
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen))), ErrorCode::NOT_FOUND);
}

// -------------------------------------------------------------------------------------------------------- who may ask

TEST_F(CopyKeeperTest, OnlyTheRanksAgentOfTheNewestDecisionMayAsk) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  EXPECT_EQ(CodeOf(Offer(OfferOf(kTwenty), "b").status()), ErrorCode::PERMISSION);
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen), "b")), ErrorCode::PERMISSION);
  EXPECT_EQ(CodeOf(Describe(kTen, "1000", "b").status()), ErrorCode::PERMISSION);
  EXPECT_EQ(CodeOf(Describe(kTen, "1001").status()), ErrorCode::JOB_OWNED);
  EXPECT_EQ(CodeOf(Offer(OfferOf(kTwenty), "c").status()), ErrorCode::PERMISSION) << "has another rank";
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen), "c")), ErrorCode::PERMISSION);
  EXPECT_TRUE(Describe(kTen, "1000", "c").ok()) << "may need it to rebuild its own";
  EXPECT_EQ(CodeOf(Describe(kTen, "1001", "c").status()), ErrorCode::JOB_OWNED);
  EXPECT_EQ(CodeOf(Offer(OfferOf(kTwenty, 2)).status()), ErrorCode::BUSY) << "not heard of yet: ask again";
  Decide(2, "b");
  EXPECT_EQ(CodeOf(Offer(OfferOf(kTwenty, 1)).status()), ErrorCode::FENCED);
  EXPECT_EQ(CodeOf(Describe(kTen).status()), ErrorCode::FENCED);
  auto gather = std::make_shared<v1::State>(*state_);
  gather->clear_decision();
  state_ = gather;
  EXPECT_EQ(CodeOf(Offer(OfferOf(kTwenty, 2), "b").status()), ErrorCode::BUSY);
  state_ = nullptr;
  EXPECT_EQ(CodeOf(Offer(OfferOf(kTwenty, 2), "b").status()), ErrorCode::BUSY);
}

// A rank that moved in the next attempt begins with a fill of its own; what the agent before it still sends is lost.
TEST_F(CopyKeeperTest, TheNextOwnerBeginsAnew) {
  const auto old = Offer(OfferOf(kTen));
  ASSERT_TRUE(old.ok()) << old.status();
  auto end = Dial(kTen, *old);
  ASSERT_TRUE(end.ok());
  Arrive(*end, kTen, 3);
  Decide(2, "b");
  const auto anew = Offer(OfferOf(kTen, 2), "b");
  ASSERT_TRUE(anew.ok()) << anew.status();
  EXPECT_NE(anew->slot(), old->slot());
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen), "b")), ErrorCode::REFUSED) << "none of its own chunks came";
  EXPECT_EQ(CodeOf(std::get<transport::ServedReceive>(end->end).target.verified(0, 1)), ErrorCode::FENCED);
}

// ---------------------------------------------------------------------------------------------------------- outgoing

TEST_F(CopyKeeperTest, WhatIsDescribedStaysUntilItWasRead) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  const auto described = Describe(kTen);
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->record().chunk_crc_size(), 3);
  EXPECT_EQ(described->world_size(), 8u);
  EXPECT_TRUE(Held(kTen));
  Pass(seconds(90));
  EXPECT_FALSE(Held(kTen)) << "nobody came";
  EXPECT_EQ(CodeOf(Dial(kTen, *described).status()), ErrorCode::PERMISSION) << "the token is too old";
}

// The next copy needs the slot.
TEST_F(CopyKeeperTest, WhatWasOnlyLookedAtIsLetGoOfWhenAllHaveLoaded) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  ASSERT_TRUE(Describe(kTen).ok());
  Enter(v1::State::LOAD);
  EXPECT_TRUE(Held(kTen));
  Enter(v1::State::RUN);
  EXPECT_FALSE(Held(kTen));
  const auto described = Describe(kTen);
  const auto end = Dial(kTen, *described);
  Enter(v1::State::RUN);
  EXPECT_TRUE(Held(kTen)) << "it is being read";
}

// Its transfer would wait for another connection, and keep the slot meanwhile.
TEST_F(CopyKeeperTest, WhatBrokeOffIsNotWaitedForWhenAllHaveLoaded) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  const auto first = Describe(kTen);
  auto end = Dial(kTen, *first);
  ASSERT_TRUE(end.ok() && end->wanted) << end.status();
  Enter(v1::State::LOAD);
  EXPECT_TRUE(end->wanted());
  Enter(v1::State::RUN);
  EXPECT_FALSE(end->wanted());
  EXPECT_NE(Describe(kTen)->slot(), first->slot()) << "whoever reads it still begins anew";
  Enter(v1::State::RUN);
  end = Error(ErrorCode::FENCED, "the transport has let go of it");
  Settle();
  EXPECT_FALSE(Held(kTen));
}

TEST_F(CopyKeeperTest, WhatWasReadIsLetGoOfAtOnceAndWhatBrokeOffIsNot) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  const auto read = [&](const absl::Status& status) {
    auto end = Dial(kTen, *Describe(kTen));
    ASSERT_TRUE(end.ok()) << end.status();
    const transport::MoveDone done = std::move(end->done);
    end = Error(ErrorCode::CANCELLED, "the transport has ended it");
    done(status);
    Pass(seconds(1));
  };
  read(Error(ErrorCode::AGENT_UNREACHABLE, "the connection broke"));
  EXPECT_TRUE(Held(kTen)) << "it is read on by the next one";
  read(absl::OkStatus());
  EXPECT_FALSE(Held(kTen));
}

TEST_F(CopyKeeperTest, ATokenIsOfUseToNobodyElse) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  const auto described = Describe(kTen);
  ASSERT_TRUE(described.ok()) << described.status();
  transport::Hello hello;
  hello.token = *TokenOf(described->token());
  hello.name = {"a", "gpt", 7, kTen, described->slot()};
  EXPECT_EQ(CodeOf(keeper_->Redeem("c", hello).status()), ErrorCode::PERMISSION);
}

TEST_F(CopyKeeperTest, ARangeOfItsChunksIsATransferOfItsOwn) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  const auto whole = Describe(kTen);
  const auto tail = Describe(kTen, "1000", "a", 1, 2);
  ASSERT_TRUE(whole.ok() && tail.ok()) << whole.status() << tail.status();
  EXPECT_NE(tail->slot(), whole->slot());
  EXPECT_EQ(Describe(kTen, "1000", "a", 1, 2)->slot(), tail->slot()) << "asked again for the next connection";
  EXPECT_EQ(tail->record().chunk_crc_size(), 3) << "the record is the image's";
  auto end = Dial(kTen, *tail);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->image_bytes, 2 * region::kTestChunkBytes);
  const auto& send = std::get<transport::ServedSend>(end->end);
  const std::vector<std::byte> content = ContentOf(kTen);
  const std::vector<uint32_t> crcs = region::CrcsOf(content);
  EXPECT_THAT(send.chunk_crcs, ElementsAre(crcs[1], crcs[2]));
  std::vector<std::byte> bytes(region::kTestChunkBytes);
  ASSERT_TRUE(send.source.read(region::kTestChunkBytes, bytes).ok());
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), content.begin() + 2 * region::kTestChunkBytes));
  EXPECT_EQ(Dial(kTen, *whole)->image_bytes, 3 * region::kTestChunkBytes);
  EXPECT_EQ(Dial(kTen, *Describe(kTen, "1000", "a", 1, 0))->image_bytes, 2 * region::kTestChunkBytes) << "to the end";
}

TEST_F(CopyKeeperTest, ARangeLiesInTheImage) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  using Range = std::pair<uint64_t, uint64_t>;
  for (const auto& [first, chunks] : {Range{0, 4}, Range{3, 0}, Range{3, 1}, Range{4, 0}, Range{1, UINT64_MAX}})
    EXPECT_EQ(CodeOf(Describe(kTen, "1000", "a", first, chunks).status()), ErrorCode::INVALID_ARGUMENT)
        << first << " " << chunks;
  EXPECT_FALSE(Held(kTen)) << "nothing is kept for it";
}

// Each is remembered, and there are as many as the square of an image's chunks.
TEST_F(CopyKeeperTest, ANodeHasSoManyRangesOfAnImageAndNoMore) {
  auto record = std::make_shared<region::SlotRecord>();
  record->chunk_crcs.resize(2000);
  own_ = HeldSnapshot{{}, record, nullptr, nullptr};
  for (uint64_t first = 0; first < 1024; ++first) ASSERT_TRUE(Describe(kTen, "1000", "a", first, 1).ok()) << first;
  EXPECT_EQ(CodeOf(Describe(kTen, "1000", "a", 1024, 1).status()), ErrorCode::BUSY);
  EXPECT_TRUE(Describe(kTen, "1000", "a", 7, 1).ok()) << "is one of them";
  EXPECT_TRUE(Describe(kTen, "1000", "c", 1024, 1).ok()) << "another node";
  Pass(seconds(75));
  EXPECT_TRUE(Describe(kTen, "1000", "a", 1024, 1).ok());
}

// A transfer takes longer than any patience with one that was only announced; then its connection breaks. It goes on
// under the name that it has.
TEST_F(CopyKeeperTest, ALongTransferKeepsItsName) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  const auto first = Describe(kTen);
  ASSERT_TRUE(first.ok()) << first.status();
  auto end = Dial(kTen, *first);
  ASSERT_TRUE(end.ok()) << end.status();
  Pass(seconds(300));
  const auto again = Describe(kTen);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->slot(), first->slot());
  auto next = Dial(kTen, *again);
  ASSERT_TRUE(next.ok()) << next.status();
  next = absl::CancelledError();  // the transport goes on with the end that it has
  Pass(seconds(300));
  EXPECT_EQ(Describe(kTen)->slot(), first->slot());
  end = absl::CancelledError();
  Settle();
  Pass(seconds(90));
  EXPECT_FALSE(Held(kTen));
}

}  // namespace
}  // namespace ckptd::protect
