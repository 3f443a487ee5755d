// Parity that a node keeps of others: pieces are offered, folded and sealed, and what comes of them can be read. A real
// region; the bytes are put where the transport would put them.
#include "daemon/protect/parity_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>

#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/copy_keeper.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/region/peer_test_util.h"

namespace ckptd::protect {
namespace {

using region::ContentOf;
using region::kTestChunkBytes;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SnapshotId kStep10{1, 10};
constexpr SnapshotId kStep20{1, 20};

// Ranks 0 to 3 are a group with one parity; this node has rank 1, and so keeps the parity of stripe 1, to which 0, 2
// and 3 give a block. Their images have 5 chunks, 3, and 2 of which the second is short: blocks of 2 chunks, 1, and 1.
class ParityKeeperTest : public region::PeerStoreTest {
 protected:
  static constexpr uint64_t kBytes[] = {320 * kKiB, 192 * kKiB, 192 * kKiB, 68 * kKiB};

  ParityKeeperTest() {
    auto state = std::make_shared<v1::State>();
    state->set_job("gpt");
    state->set_attempt(1);
    state->set_user("1000");
    state->set_phase(v1::State::RUN);
    state->set_parity(1);
    v1::HolderGroup* group = state->add_groups();
    for (Rank rank = 0; rank < 4; ++rank) group->add_agents(Node(rank));
    for (Rank rank = 0; rank < 4; ++rank) {
      v1::RankClaim* claim = state->mutable_decision()->add_ranks();
      claim->set_rank(rank);
      claim->set_agent(Node(rank));
    }
    state_ = state;
    Make();
  }
  static std::string Node(Rank rank) { return std::string(1, static_cast<char>('a' + rank)); }
  void Make() {
    keeper_ = std::make_unique<CopyKeeper>(
        *loop_, clock_, *region_, work_,
        CopyKeeper::Handler{[this](const std::string&) { return state_; },
                            [](const std::string&, Rank, const SnapshotId&) {
                              return absl::StatusOr<HeldSnapshot>(Error(ErrorCode::NOT_FOUND, "in no slot"));
                            },
                            [this](const std::string&) { ++changes_; }});
  }
  void Settle() {
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(loop_->RunOnce(Nanos(0)).ok());
  }

  static v1::ParityPiece Piece() {
    v1::ParityPiece piece;
    for (const Rank rank : {0, 1, 2, 3}) piece.add_ranks(rank);
    piece.set_parity(1);
    piece.set_stripe(1);
    return piece;
  }
  static std::vector<std::byte> ImageOf(Rank rank, const SnapshotId& id) { return ContentOf(id, rank, kBytes[rank]); }
  static erasure::Extent BlockOf(Rank rank) {
    return BlockGivenBy(PlaceOf(Piece()), rank, kBytes[rank], kTestChunkBytes);
  }
  static v1::CopyLayout LayoutOf(Rank rank) {
    v1::CopyLayout layout;
    layout.set_chunk_bytes(kTestChunkBytes);
    layout.set_slot_bytes(kBytes[rank]);
    layout.set_header_crc(rank + 1);
    layout.add_images()->set_bytes(kBytes[rank]);
    layout.mutable_images(0)->set_header_bytes(4096);
    return layout;
  }
  static v1::OfferRequest OfferOf(Rank rank, const SnapshotId& id) {
    v1::OfferRequest request;
    *request.mutable_copy() = NameOfCopy("gpt", rank, id);
    request.set_user("1000");
    request.set_world_size(4);
    request.set_attempt(1);
    request.mutable_marks()->set_attempt(1);
    request.mutable_marks()->set_floor(id.step + 1);
    SetRef(id, request.mutable_marks()->mutable_captured());
    *request.mutable_layout() = LayoutOf(rank);
    *request.mutable_parity() = Piece();
    return request;
  }
  using Offered = absl::StatusOr<v1::OfferResponse>;
  // The answer may come later.
  std::shared_ptr<std::optional<Offered>> Offer(const v1::OfferRequest& request) {
    auto said = std::make_shared<std::optional<Offered>>();
    keeper_->Offer(Node(request.copy().rank()), request, [said](Offered answer) { *said = std::move(answer); });
    return said;
  }
  std::map<Rank, Offered> OfferAll(const SnapshotId& id) {
    std::map<Rank, std::shared_ptr<std::optional<Offered>>> asked;
    for (const Rank rank : {0, 2, 3}) asked[rank] = Offer(OfferOf(rank, id));
    Settle();
    std::map<Rank, Offered> out;
    for (auto& [rank, said] : asked) {
      EXPECT_TRUE(said->has_value()) << rank;
      out.emplace(rank, said->has_value() ? **said : Offered(Error(ErrorCode::TIMEOUT, "no answer")));
    }
    return out;
  }
  absl::StatusOr<transport::BulkEnd> Dial(Rank rank, const SnapshotId& id, const std::string& token, uint32_t slot) {
    transport::Hello hello;
    hello.token = *TokenOf(token);
    hello.name = {Node(rank), "gpt", rank, id, slot};
    return keeper_->Redeem(Node(rank), hello);
  }
  // Its block comes, whole.
  void Arrive(Rank rank, const SnapshotId& id, const v1::OfferResponse& said) {
    const auto end = Dial(rank, id, said.token(), said.slot());
    ASSERT_TRUE(end.ok()) << end.status();
    const erasure::Extent block = BlockOf(rank);
    ASSERT_EQ(end->image_bytes, block.size);
    const std::vector<std::byte> image = ImageOf(rank, id);
    const std::vector<uint32_t> crcs = region::CrcsOf(image);
    const auto& receive = std::get<transport::ServedReceive>(end->end);
    std::memcpy(receive.target.bytes.data(), image.data() + block.begin, block.size);
    for (uint64_t at = 0; at < block.size; at += kTestChunkBytes) {
      const auto chunk = static_cast<uint32_t>(at / kTestChunkBytes);
      const absl::Status in = receive.target.verified(chunk, crcs[block.begin / kTestChunkBytes + chunk]);
      ASSERT_TRUE(in.ok()) << in;
    }
    end->done(absl::OkStatus());
    Settle();
  }
  v1::SealRequest SealRequestOf(Rank rank, const SnapshotId& id) {
    const std::vector<uint32_t> crcs = region::CrcsOf(ImageOf(rank, id));
    v1::SealRequest request;
    *request.mutable_copy() = NameOfCopy("gpt", rank, id);
    request.set_attempt(1);
    request.set_header_crc(rank + 1);
    SetRef(id, request.mutable_record()->mutable_snapshot());
    request.mutable_record()->set_trace(rank + 100);
    request.mutable_record()->set_chunk_count(static_cast<uint32_t>(crcs.size()));
    request.mutable_record()->mutable_chunk_crc()->Assign(crcs.begin(), crcs.end());
    request.set_root_crc(region::RootCrc(crcs));
    *request.mutable_parity() = Piece();
    return request;
  }
  absl::Status Seal(const v1::SealRequest& request) {
    absl::Status said = Error(ErrorCode::INTERNAL, "no answer");
    keeper_->Seal(Node(request.copy().rank()), request,
                  [&](const absl::StatusOr<v1::SealResponse>& answer) { said = answer.status(); });
    return said;
  }
  void Store(const SnapshotId& id) {
    for (const auto& [rank, said] : OfferAll(id)) {
      ASSERT_TRUE(said.ok()) << said.status();
      ASSERT_FALSE(said->have());
      Arrive(rank, id, *said);
      ASSERT_TRUE(Seal(SealRequestOf(rank, id)).ok()) << Seal(SealRequestOf(rank, id));
    }
  }
  absl::StatusOr<v1::DescribeResponse> Describe(Rank rank, const SnapshotId& id, uint64_t first = 0,
                                                uint64_t chunks = 0) {
    v1::DescribeRequest request;
    *request.mutable_copy() = NameOfCopy("gpt", rank, id);
    request.set_user("1000");
    request.set_attempt(1);
    *request.mutable_parity() = Piece();
    request.set_first_chunk(first);
    request.set_chunks(chunks);
    absl::StatusOr<v1::DescribeResponse> said = Error(ErrorCode::INTERNAL, "no answer");
    keeper_->Describe(Node(rank), request, [&](auto answer) { said = std::move(answer); });
    return said;
  }
  // XOR of the blocks, in whole chunks.
  static std::vector<std::byte> ParityOf(const SnapshotId& id) {
    std::vector<std::byte> parity(2 * kTestChunkBytes);
    for (const Rank rank : {0, 2, 3}) {
      const std::vector<std::byte> image = ImageOf(rank, id);
      const erasure::Extent block = BlockOf(rank);
      for (uint64_t i = 0; i < block.size; ++i) parity[i] ^= image[block.begin + i];
    }
    return parity;
  }
  std::vector<SnapshotId> Complete() {
    std::vector<SnapshotId> ids;
    for (const v1::HeldParity& held : keeper_->ParityOf("gpt")) ids.push_back(ToId(held.complete(0)));
    std::sort(ids.begin(), ids.end());
    return ids;
  }

  FakeClock clock_;
  std::unique_ptr<Loop> loop_ = *Loop::Create(clock_, 64);
  InlineExecutor work_;
  std::shared_ptr<const v1::State> state_;
  std::unique_ptr<CopyKeeper> keeper_;
  int changes_ = 0;
};

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
  const std::vector<uint32_t> crcs(other.record().chunk_crc().begin(), other.record().chunk_crc().end());
  other.set_root_crc(region::RootCrc(crcs));
  EXPECT_EQ(CodeOf(Seal(other)), ErrorCode::CORRUPT) << "of a chunk that came otherwise";
  other = SealRequestOf(0, kStep10);
  other.set_header_crc(9);
  EXPECT_EQ(CodeOf(Seal(other)), ErrorCode::CORRUPT);
  other = SealRequestOf(0, kStep20);
  EXPECT_EQ(CodeOf(Seal(other)), ErrorCode::NOT_FOUND);
  EXPECT_TRUE(Seal(SealRequestOf(0, kStep10)).ok());
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

TEST_F(ParityKeeperTest, WhatCannotBeFoldedTogetherIsRefusedToAll) {
  v1::OfferRequest odd = OfferOf(3, kStep10);
  odd.mutable_layout()->set_chunk_bytes(2 * kTestChunkBytes);
  const auto first = Offer(OfferOf(0, kStep10));
  const auto second = Offer(OfferOf(2, kStep10));
  const auto third = Offer(odd);
  for (const auto& said : {first, second, third}) {
    ASSERT_TRUE(said->has_value());
    EXPECT_EQ(CodeOf((*said)->status()), ErrorCode::INVALID_ARGUMENT) << (*said)->status();
  }
}

// A member cannot make this node keep parity of what nobody grouped.
TEST_F(ParityKeeperTest, OnlyGroupsThatTheCoordinatorNamedHaveParity) {
  v1::OfferRequest made_up = OfferOf(0, kStep10);
  made_up.mutable_parity()->set_ranks(3, 4000);
  v1::OfferRequest other_order = OfferOf(0, kStep10);
  other_order.mutable_parity()->set_ranks(2, 3);
  other_order.mutable_parity()->set_ranks(3, 2);
  v1::OfferRequest more = OfferOf(0, kStep10);
  more.mutable_parity()->set_parity(2);
  more.mutable_parity()->set_row(1);
  for (const v1::OfferRequest& request : {made_up, other_order, more}) {
    const auto said = Offer(request);
    ASSERT_TRUE(said->has_value());
    EXPECT_EQ(CodeOf((*said)->status()), ErrorCode::BUSY) << (*said)->status();
  }
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

// What ranks 0 and 2 offer for a group of 2, 1 and 0.
TEST_F(ParityKeeperTest, AnotherGroupingWaitsWhileRanksLoadAndNoLonger) {
  Store(kStep10);
  auto loading = std::make_shared<v1::State>(*state_);
  loading->mutable_groups(0)->clear_agents();
  for (const Rank rank : {2, 1, 0}) loading->mutable_groups(0)->add_agents(Node(rank));
  loading->set_phase(v1::State::LOAD);
  state_ = loading;
  const auto offer = [this] {
    std::vector<std::shared_ptr<std::optional<Offered>>> asked;
    for (const Rank rank : {0, 2}) {
      v1::OfferRequest other = OfferOf(rank, kStep10);
      other.mutable_parity()->clear_ranks();
      for (const Rank of : {2, 1, 0}) other.mutable_parity()->add_ranks(of);
      asked.push_back(Offer(other));
    }
    Settle();
    return asked;
  };
  for (const auto& said : offer()) EXPECT_EQ(CodeOf((**said).status()), ErrorCode::BUSY) << "somebody may rebuild";
  EXPECT_THAT(Complete(), ElementsAre(kStep10));
  auto running = std::make_shared<v1::State>(*loading);
  running->set_phase(v1::State::RUN);
  state_ = running;
  for (const auto& said : offer()) EXPECT_TRUE((**said).ok()) << (**said).status();
  EXPECT_THAT(Complete(), IsEmpty());
}

// The block of rank 3 in stripe 0 is its third one, and empty: there is nothing to move.
TEST_F(ParityKeeperTest, AnotherGroupingTakesThePlaceOfWhatIsComplete) {
  Store(kStep10);
  auto regrouped = std::make_shared<v1::State>(*state_);
  regrouped->mutable_groups(0)->clear_agents();
  for (const Rank rank : {2, 1, 0}) regrouped->mutable_groups(0)->add_agents(Node(rank));
  state_ = regrouped;
  v1::OfferRequest other = OfferOf(0, kStep10);
  other.mutable_parity()->clear_ranks();
  for (const Rank rank : {2, 1, 0}) other.mutable_parity()->add_ranks(rank);
  auto first = Offer(other);
  *other.mutable_copy() = NameOfCopy("gpt", 2, kStep10);
  *other.mutable_layout() = LayoutOf(2);
  auto second = Offer(other);
  Settle();
  ASSERT_TRUE(first->has_value() && second->has_value());
  EXPECT_TRUE((*first)->ok()) << (*first)->status();
  EXPECT_THAT(Complete(), IsEmpty()) << "it protects nobody any more";
  EXPECT_EQ(changes_, 2);
}

}  // namespace
}  // namespace ckptd::protect
