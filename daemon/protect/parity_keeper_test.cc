// Parity that a node keeps of others: pieces are offered, folded and sealed, and what comes of them can be read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "daemon/protect/parity_keeper_fixture.h"

namespace ckptd::protect {
namespace {

using region::kTestChunkBytes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST_F(ParityKeeperTest, PiecesBecomeParity) {
  Store(kStep10);
  const auto held = keeper_->ParityOf("gpt");
  ASSERT_THAT(held, SizeIs(1));
  EXPECT_THAT(held[0].ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(held[0].stripe(), 1u);
  EXPECT_EQ(held[0].row(), 0u);
  EXPECT_EQ(ToId(held[0].complete(0)), kStep10);
  EXPECT_EQ(changes_, 1);
  EXPECT_THAT(keeper_->CopiesOf("gpt"), IsEmpty()) << "it is no copy";
  for (const auto& [rank, said] : OfferAll(kStep10)) EXPECT_TRUE(said.ok() && said->have()) << rank;
}

TEST_F(ParityKeeperTest, WhoRebuildsReadsBytesAndRecord) {
  Store(kStep10);
  const auto told = Describe(2, kStep10);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->layout().slot_bytes(), kBytes[2]);
  EXPECT_EQ(told->record().trace(), 102u);
  EXPECT_EQ(told->world_size(), 4u);
  EXPECT_EQ(told->record().chunk_crc_size(), 3);
  ASSERT_EQ(told->parity_bytes(), 2 * kTestChunkBytes);
  const std::vector<uint32_t> crcs = region::CrcsOf(ParityOf(kStep10));
  EXPECT_THAT(told->parity_crc(), ElementsAre(crcs[0], crcs[1]));
  const auto end = Dial(2, kStep10, told->token(), told->slot());
  ASSERT_TRUE(end.ok()) << end.status();
  std::vector<std::byte> read(end->image_bytes);
  ASSERT_TRUE(std::get<transport::ServedSend>(end->end).source.read(0, read).ok());
  EXPECT_EQ(read, ParityOf(kStep10));
}

TEST_F(ParityKeeperTest, WhatNobodyReadsIsLetGoOfWhenAllHaveLoaded) {
  Store(kStep10);
  const auto told = Describe(2, kStep10);
  ASSERT_TRUE(told.ok()) << told.status();
  v1::State state = *state_;
  state.set_phase(v1::State::LOAD);
  keeper_->Heard(state);
  {
    const auto end = Dial(2, kStep10, told->token(), told->slot());
    ASSERT_TRUE(end.ok() && end->wanted) << end.status();
    EXPECT_TRUE(end->wanted());
    state.set_phase(v1::State::RUN);
    keeper_->Heard(state);
    EXPECT_TRUE(store().List().at(0).held) << "it is being read";
    EXPECT_FALSE(end->wanted()) << "no connection after this one is waited for";
  }
  Settle();
  EXPECT_FALSE(store().List().at(0).held);
}

TEST_F(ParityKeeperTest, ARangeOfChunksIsRead) {
  Store(kStep10);
  const auto told = Describe(0, kStep10, 1, 1);
  ASSERT_TRUE(told.ok()) << told.status();
  const auto end = Dial(0, kStep10, told->token(), told->slot());
  ASSERT_TRUE(end.ok()) << end.status();
  ASSERT_EQ(end->image_bytes, kTestChunkBytes);
  std::vector<std::byte> read(kTestChunkBytes);
  ASSERT_TRUE(std::get<transport::ServedSend>(end->end).source.read(0, read).ok());
  EXPECT_EQ(std::memcmp(read.data(), ParityOf(kStep10).data() + kTestChunkBytes, kTestChunkBytes), 0);
  EXPECT_EQ(CodeOf(Describe(0, kStep10, 1, 2).status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(Describe(0, kStep10, 1, 1)->slot(), told->slot()) << "who asks again goes on";
}

// As of an image.
TEST_F(ParityKeeperTest, ANodeHasSoManyRangesOfAParityAndNoMore) {
  Store(kStep10);
  uint32_t last = 0;
  ParityReads reads(*loop_, clock_, *region_,
                    {[](const transport::TransferName&) { return transport::RandomToken(); }, [&] { return ++last; }},
                    /*most_ranges=*/2);
  const auto ask = [&](const std::string& peer, uint64_t first, uint64_t chunks) {
    v1::DescribeRequest request;
    *request.mutable_copy() = NameOfCopy("gpt", 2, kStep10);
    *request.mutable_parity() = Piece();
    request.set_first_chunk(first);
    request.set_chunks(chunks);
    return reads.Describe(peer, request).status();
  };
  EXPECT_TRUE(ask("a", 0, 1).ok());
  EXPECT_TRUE(ask("a", 1, 1).ok());
  EXPECT_EQ(CodeOf(ask("a", 0, 2)), ErrorCode::BUSY) << ask("a", 0, 2);
  EXPECT_TRUE(ask("a", 1, 1).ok()) << "is one of them";
  EXPECT_TRUE(ask("d", 0, 2).ok()) << "another node";
  clock_.Advance(seconds(61));
  reads.Sweep();
  EXPECT_TRUE(ask("a", 0, 2).ok()) << "nobody reads the others";
}

TEST_F(ParityKeeperTest, ItStaysOverARestartOfTheAgent) {
  Store(kStep10);
  keeper_.reset();
  Restart();
  Make();
  EXPECT_THAT(Complete(), ElementsAre(kStep10));
  const auto told = Describe(3, kStep10);
  ASSERT_TRUE(told.ok()) << told.status();
  EXPECT_EQ(told->record().trace(), 103u);
}

TEST_F(ParityKeeperTest, AnOfferWaitsForTheOthersAndNotForEver) {
  const auto first = Offer(OfferOf(0, kStep10));
  const auto second = Offer(OfferOf(2, kStep10));
  Settle();
  EXPECT_FALSE(first->has_value());
  for (int i = 0; i < 12; ++i) {
    clock_.Advance(seconds(1));
    Settle();
  }
  ASSERT_TRUE(first->has_value() && second->has_value());
  EXPECT_EQ(CodeOf((*first)->status()), ErrorCode::BUSY);
  for (const auto& [rank, said] : OfferAll(kStep10)) EXPECT_TRUE(said.ok()) << rank << ": " << said.status();
}

TEST_F(ParityKeeperTest, TheParityBeforeStaysUntilTheNewOneIsComplete) {
  Store(kStep10);
  const auto said = OfferAll(kStep20);
  for (const Rank rank : {0, 2}) {
    Arrive(rank, kStep20, *said.at(rank));
    ASSERT_TRUE(Seal(SealRequestOf(rank, kStep20)).ok());
  }
  EXPECT_THAT(Complete(), ElementsAre(kStep10));
  Arrive(3, kStep20, *said.at(3));
  EXPECT_THAT(Complete(), ElementsAre(kStep10)) << "not sealed yet";
  ASSERT_TRUE(Seal(SealRequestOf(3, kStep20)).ok());
  EXPECT_THAT(Complete(), ElementsAre(kStep10, kStep20));
}

TEST_F(ParityKeeperTest, WhatComesTwiceIsFoldedOnce) {
  const auto said = OfferAll(kStep10);
  Arrive(0, kStep10, *said.at(0));
  const auto again = Offer(OfferOf(0, kStep10));
  ASSERT_TRUE(again->has_value() && (*again)->ok());
  Arrive(0, kStep10, ***again);
  for (const Rank rank : {2, 3}) Arrive(rank, kStep10, *said.at(rank));
  for (const Rank rank : {0, 2, 3}) ASSERT_TRUE(Seal(SealRequestOf(rank, kStep10)).ok()) << rank;
  const auto told = Describe(0, kStep10);
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(told->parity_crc(0), region::CrcsOf(ParityOf(kStep10))[0]);
}

TEST_F(ParityKeeperTest, ASealMustBeOfWhatCame) {
  const auto said = OfferAll(kStep10);
  EXPECT_EQ(CodeOf(Seal(SealRequestOf(0, kStep10))), ErrorCode::REFUSED) << "chunks are missing";
  Arrive(0, kStep10, *said.at(0));
  v1::SealRequest other = SealRequestOf(0, kStep10);
  other.mutable_record()->set_chunk_crc(0, other.record().chunk_crc(0) + 1);
  EXPECT_EQ(CodeOf(Seal(other)), ErrorCode::CORRUPT) << "the root checksum is of another list";
  other = SealRequestOf(0, kStep10);
  other.set_header_crc(9);
  EXPECT_EQ(CodeOf(Seal(other)), ErrorCode::CORRUPT);
  other = SealRequestOf(0, kStep20);
  EXPECT_EQ(CodeOf(Seal(other)), ErrorCode::NOT_FOUND);
  EXPECT_TRUE(Seal(SealRequestOf(0, kStep10)).ok());
}

// A piece that came early is not of the image that was sealed in the end. It cannot be taken out of the parity again,
// so all pieces come again.
TEST_F(ParityKeeperTest, AParityOfBytesThatNobodySealedIsBegunAnew) {
  const auto early = OfferAll(kStep10);
  for (const Rank rank : {0, 2, 3}) Arrive(rank, kStep10, *early.at(rank));
  EXPECT_TRUE(Seal(SealRequestOf(2, kStep10)).ok());
  v1::SealRequest other = SealRequestOf(0, kStep10);
  other.mutable_record()->set_chunk_crc(0, other.record().chunk_crc(0) + 1);
  const std::vector<uint32_t> crcs(other.record().chunk_crc().begin(), other.record().chunk_crc().end());
  other.set_root_crc(region::RootCrc(crcs));
  EXPECT_EQ(CodeOf(Seal(other)), ErrorCode::CORRUPT) << "of a chunk that came otherwise";
  EXPECT_EQ(CodeOf(Seal(SealRequestOf(3, kStep10))), ErrorCode::NOT_FOUND);
  ASSERT_NO_FATAL_FAILURE(Store(kStep10));
  EXPECT_THAT(Complete(), ElementsAre(kStep10));
}

// The early transfer was cut off, so that its chunk comes a second time.
TEST_F(ParityKeeperTest, AParityInWhichAChunkIsAnotherOneIsBegunAnew) {
  const auto early = OfferAll(kStep10);
  auto end = Dial(0, kStep10, early.at(0)->token(), early.at(0)->slot());
  ASSERT_TRUE(end.ok()) << end.status();
  ASSERT_TRUE(std::get<transport::ServedReceive>(end->end).target.verified(0, 9).ok());
  end->done(Error(ErrorCode::CANCELLED, "its sender begins anew"));
  const auto again = Offer(OfferOf(0, kStep10));
  ASSERT_TRUE(again->has_value() && (*again)->ok());
  end = Dial(0, kStep10, (**again)->token(), (**again)->slot());
  ASSERT_TRUE(end.ok()) << end.status();
  const uint32_t crc = region::CrcsOf(ImageOf(0, kStep10))[BlockOf(0).begin / kTestChunkBytes];
  const absl::Status folded = std::get<transport::ServedReceive>(end->end).target.verified(0, crc);
  EXPECT_EQ(CodeOf(folded), ErrorCode::CORRUPT) << folded;
  end->done(folded);
  end = absl::CancelledError();
  ASSERT_NO_FATAL_FAILURE(Store(kStep10));
  EXPECT_THAT(Complete(), ElementsAre(kStep10));
}

// Bytes that were damaged on their way were never folded.
TEST_F(ParityKeeperTest, ADamagedTransferLeavesTheParityAsItIs) {
  const auto said = OfferAll(kStep10);
  for (const Rank rank : {2, 3}) Arrive(rank, kStep10, *said.at(rank));
  auto end = Dial(0, kStep10, said.at(0)->token(), said.at(0)->slot());
  ASSERT_TRUE(end.ok()) << end.status();
  end->done(Error(ErrorCode::CORRUPT, "chunk 0 did not match its checksum after 4 attempts"));
  for (const Rank rank : {2, 3}) EXPECT_TRUE(Seal(SealRequestOf(rank, kStep10)).ok());
  const auto again = Offer(OfferOf(0, kStep10));
  ASSERT_TRUE(again->has_value() && (*again)->ok());
  Arrive(0, kStep10, ***again);
  EXPECT_TRUE(Seal(SealRequestOf(0, kStep10)).ok());
  EXPECT_THAT(Complete(), ElementsAre(kStep10));
}

TEST_F(ParityKeeperTest, ANewerStepTakesThePlaceOfWhatIsUnderWay) {
  const auto old = OfferAll(kStep10);
  const auto end = Dial(0, kStep10, old.at(0)->token(), old.at(0)->slot());
  ASSERT_TRUE(end.ok());
  const auto said = OfferAll(kStep20);
  EXPECT_FALSE(end->wanted());
  const auto& receive = std::get<transport::ServedReceive>(end->end);
  EXPECT_EQ(CodeOf(receive.target.verified(0, 0)), ErrorCode::FENCED);
  EXPECT_EQ(CodeOf(Seal(SealRequestOf(0, kStep10))), ErrorCode::NOT_FOUND);
  const auto late = Offer(OfferOf(2, kStep10));
  ASSERT_TRUE(late->has_value());
  EXPECT_EQ(CodeOf((*late)->status()), ErrorCode::SUPERSEDED);
}

// What is offered before its turn may be of a capture that is never sealed.
TEST_F(ParityKeeperTest, WhatAllRanksProtectNowIsNotHeldUpByANewerOne) {
  std::map<Rank, std::shared_ptr<std::optional<Offered>>> early;
  for (const Rank rank : {0, 2, 3}) {
    v1::OfferRequest request = OfferOf(rank, kStep20);
    *request.mutable_marks() = OfferOf(rank, kStep10).marks();
    early[rank] = Offer(request);
  }
  Settle();
  ASSERT_TRUE(early[0]->has_value() && (*early[0])->ok());
  auto end = Dial(0, kStep20, (**early[0])->token(), (**early[0])->slot());
  ASSERT_TRUE(end.ok());
  const auto now = OfferAll(kStep10);
  EXPECT_FALSE(end->wanted());
  end = Error(ErrorCode::CANCELLED, "its writer lets go");
  for (const Rank rank : {0, 2, 3}) {
    ASSERT_TRUE(now.at(rank).ok()) << now.at(rank).status();
    Arrive(rank, kStep10, *now.at(rank));
    EXPECT_TRUE(Seal(SealRequestOf(rank, kStep10)).ok());
  }
  EXPECT_TRUE(OfferAll(kStep20).at(0).ok());
}

// A node without memory for it says so to all, each time it is asked, and holds nothing.
TEST_F(ParityKeeperTest, WithoutMemoryAllAreToldAndNothingIsKept) {
  keeper_.reset();
  region::RegionOptions options;
  options.peers_memory = 4096;
  Restart(options);
  Make();
  for (int round = 0; round < 2; ++round) {
    for (const auto& [rank, said] : OfferAll(kStep10))
      EXPECT_EQ(CodeOf(said.status()), ErrorCode::QUOTA_EXCEEDED) << rank << ": " << said.status();
  }
  EXPECT_THAT(Complete(), IsEmpty());
}

TEST_F(ParityKeeperTest, WhoDoesNotHaveTheRankOffersNothing) {
  std::optional<Offered> said;
  keeper_->Offer("d", OfferOf(0, kStep10), [&](Offered answer) { said = std::move(answer); });
  ASSERT_TRUE(said.has_value());
  EXPECT_EQ(CodeOf(said->status()), ErrorCode::PERMISSION);
}

TEST_F(ParityKeeperTest, WhatNobodyBringsIsGivenUp) {
  const auto said = OfferAll(kStep10);
  Arrive(0, kStep10, *said.at(0));
  for (int i = 0; i < 80; ++i) {
    clock_.Advance(seconds(1));
    Settle();
  }
  EXPECT_EQ(CodeOf(Seal(SealRequestOf(0, kStep10))), ErrorCode::NOT_FOUND);
  Store(kStep10);
  EXPECT_THAT(Complete(), ElementsAre(kStep10));
}

}  // namespace
}  // namespace ckptd::protect
