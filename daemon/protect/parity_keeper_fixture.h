// A node that keeps parity of others, as a test plays them: a real region; the bytes are put where the transport would
// put them.
#ifndef CKPTD_DAEMON_PROTECT_PARITY_KEEPER_FIXTURE_H_
#define CKPTD_DAEMON_PROTECT_PARITY_KEEPER_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/copy_keeper.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/protect/parity_keeper.h"
#include "daemon/region/peer_test_util.h"

namespace ckptd::protect {

inline constexpr SnapshotId kStep10{1, 10};
inline constexpr SnapshotId kStep20{1, 20};

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
                            [this](const std::string&) { ++changes_; },
                            [this](const std::string&) { return wanted_; }});
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
  static std::vector<std::byte> ImageOf(Rank rank, const SnapshotId& id) {
    return region::ContentOf(id, rank, kBytes[rank]);
  }
  // The same stripe of a group of 2, 1 and 0.
  static v1::ParityPiece Regrouped() {
    v1::ParityPiece piece = Piece();
    piece.clear_ranks();
    for (const Rank rank : {2, 1, 0}) piece.add_ranks(rank);
    return piece;
  }
  static erasure::Extent BlockOf(Rank rank, const v1::ParityPiece& piece = Piece()) {
    return BlockGivenBy(PlaceOf(piece), rank, kBytes[rank], region::kTestChunkBytes);
  }
  static v1::CopyLayout LayoutOf(Rank rank) {
    v1::CopyLayout layout;
    layout.set_chunk_bytes(region::kTestChunkBytes);
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
  // The coordinator tells this node, too, what the owner says.
  void Hear(const v1::CopyMarks& marks) {
    auto state = std::make_shared<v1::State>(*state_);
    state->set_floor(marks.floor());
    *state->mutable_protecting() = marks.captured();
    *state->mutable_protected_() = marks.protected_();
    state_ = state;
  }
  // The answer may come later.
  std::shared_ptr<std::optional<Offered>> Offer(const v1::OfferRequest& request) {
    Hear(request.marks());
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
  // What ranks 0 and 2 offer for their new group.
  std::vector<std::shared_ptr<std::optional<Offered>>> OfferRegrouped() {
    std::vector<std::shared_ptr<std::optional<Offered>>> asked;
    for (const Rank rank : {0, 2}) {
      v1::OfferRequest other = OfferOf(rank, kStep10);
      *other.mutable_parity() = Regrouped();
      asked.push_back(Offer(other));
    }
    Settle();
    return asked;
  }
  absl::StatusOr<transport::BulkEnd> Dial(Rank rank, const SnapshotId& id, const std::string& token, uint32_t slot) {
    transport::Hello hello;
    hello.token = *TokenOf(token);
    hello.name = {Node(rank), "gpt", rank, id, slot};
    return keeper_->Redeem(Node(rank), hello);
  }
  // Its block comes, whole.
  void Arrive(Rank rank, const SnapshotId& id, const v1::OfferResponse& said, const v1::ParityPiece& piece = Piece()) {
    const auto end = Dial(rank, id, said.token(), said.slot());
    ASSERT_TRUE(end.ok()) << end.status();
    const erasure::Extent block = BlockOf(rank, piece);
    ASSERT_EQ(end->image_bytes, block.size);
    const std::vector<std::byte> image = ImageOf(rank, id);
    const std::vector<uint32_t> crcs = region::CrcsOf(image);
    const auto& receive = std::get<transport::ServedReceive>(end->end);
    std::memcpy(receive.target.bytes.data(), image.data() + block.begin, block.size);
    for (uint64_t at = 0; at < block.size; at += region::kTestChunkBytes) {
      const auto chunk = static_cast<uint32_t>(at / region::kTestChunkBytes);
      const absl::Status in = receive.target.verified(chunk, crcs[block.begin / region::kTestChunkBytes + chunk]);
      ASSERT_TRUE(in.ok()) << in;
    }
    end->done(absl::OkStatus());
    Settle();
  }
  v1::SealRequest SealRequestOf(Rank rank, const SnapshotId& id, const v1::ParityPiece& piece = Piece()) {
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
    *request.mutable_parity() = piece;
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
  void StoreRegrouped() {
    const auto said = OfferRegrouped();
    for (size_t i = 0; i < 2; ++i) {
      const Rank rank = i == 0 ? 0 : 2;
      ASSERT_TRUE((**said[i]).ok()) << (**said[i]).status();
      Arrive(rank, kStep10, ***said[i], Regrouped());
      const absl::Status sealed = Seal(SealRequestOf(rank, kStep10, Regrouped()));
      ASSERT_TRUE(sealed.ok()) << sealed;
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
    std::vector<std::byte> parity(2 * region::kTestChunkBytes);
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
  std::set<region::PeerKey> wanted_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PARITY_KEEPER_FIXTURE_H_
