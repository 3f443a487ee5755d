// What a node keeps for others, as a test asks for it: a real region; the bytes are put where the transport would put
// them. The loop's time stands still until a test moves it.
#ifndef CKPTD_DAEMON_PROTECT_COPY_KEEPER_FIXTURE_H_
#define CKPTD_DAEMON_PROTECT_COPY_KEEPER_FIXTURE_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/copy_keeper.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/region/peer_test_util.h"

namespace ckptd::protect {

inline constexpr SnapshotId kTen{1, 10};
inline constexpr SnapshotId kTwenty{1, 20};
inline constexpr SnapshotId kThirty{1, 30};

class CopyKeeperTest : public region::PeerStoreTest {
 protected:
  CopyKeeperTest() {
    Decide(1, "a");
    Make();
  }

  void Make() { Make(work_); }
  void Make(Executor& work) {
    keeper_ = std::make_unique<CopyKeeper>(
        *loop_, clock_, *region_, work,
        CopyKeeper::Handler{[this](const std::string& job) { return job == "gpt" ? state_ : nullptr; },
                            [this](const std::string&, Rank, const SnapshotId&) {
                              if (own_.has_value()) return absl::StatusOr<HeldSnapshot>(*own_);
                              return absl::StatusOr<HeldSnapshot>(Error(ErrorCode::NOT_FOUND, "in no slot"));
                            },
                            [this](const std::string&) { ++changes_; },
                            [this](const std::string&) { return wanted_; }});
  }
  // The attempt's decision: rank 7 is on `agent`, rank 5 on "c".
  void Decide(AttemptId attempt, const std::string& agent) {
    auto state = std::make_shared<v1::State>();
    state->set_job("gpt");
    state->set_attempt(attempt);
    state->set_user("1000");
    for (const auto& [rank, on] : {std::pair{7u, agent}, std::pair{5u, std::string("c")}}) {
      v1::RankClaim* claim = state->mutable_decision()->add_ranks();
      claim->set_rank(rank);
      claim->set_agent(on);
    }
    state_ = state;
  }
  // Until the loop has nothing to do; time passes in steps that are shorter than anything that waits.
  void Pass(Nanos time) {
    for (Nanos left = time; left > Nanos(0); left -= std::chrono::seconds(1)) {
      clock_.Advance(std::chrono::seconds(1));
      Settle();
    }
  }
  void Settle() {
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(loop_->RunOnce(Nanos(0)).ok());
  }

  static v1::OfferRequest OfferOf(const SnapshotId& id, AttemptId attempt = 1) {
    v1::OfferRequest request;
    *request.mutable_copy() = NameOfCopy("gpt", 7, id);
    request.set_user("1000");
    request.set_world_size(8);
    request.set_attempt(attempt);
    request.mutable_marks()->set_attempt(attempt);
    request.mutable_marks()->set_floor(id.step + 1);
    SetRef(id, request.mutable_marks()->mutable_captured());
    const region::PeerSpec spec = region::CopySpec();
    request.mutable_layout()->set_header_crc(spec.layout.header_crc);
    request.mutable_layout()->set_chunk_bytes(spec.layout.chunk_bytes);
    request.mutable_layout()->set_slot_bytes(region::kTestSlotBytes);
    for (const ImageExtent& image : spec.layout.images) {
      v1::ImageSize* size = request.mutable_layout()->add_images();
      size->set_bytes(image.bytes);
      size->set_header_bytes(image.header_bytes);
    }
    return request;
  }
  // The coordinator tells this node, too, what the owner says.
  void Hear(const v1::CopyMarks& marks) {
    auto state = std::make_shared<v1::State>(*state_);
    state->set_floor(marks.floor());
    *state->mutable_protecting() = marks.captured();
    *state->mutable_protected_() = marks.protected_();
    state_ = state;
  }
  void Enter(v1::State::Phase phase) {
    auto state = std::make_shared<v1::State>(*state_);
    state->set_phase(phase);
    state_ = state;
    keeper_->Heard(*state);
  }
  absl::StatusOr<v1::OfferResponse> OfferOnce(const v1::OfferRequest& request, const std::string& peer = "a") {
    absl::StatusOr<v1::OfferResponse> said = Error(ErrorCode::INTERNAL, "no answer");
    keeper_->Offer(peer, request, [&](auto answer) { said = std::move(answer); });
    return said;
  }
  // Asked again once while memory is prepared, as its owner does.
  absl::StatusOr<v1::OfferResponse> Offer(const v1::OfferRequest& request, const std::string& peer = "a") {
    if (state_ != nullptr) Hear(request.marks());
    auto said = OfferOnce(request, peer);
    if (CodeOf(said.status()) != ErrorCode::LAYOUT_PREPARING) return said;
    Settle();
    return OfferOnce(request, peer);
  }
  absl::Status Seal(const SnapshotId& id, uint32_t root_crc, const std::string& peer = "a") {
    v1::SealRequest request;
    *request.mutable_copy() = NameOfCopy("gpt", 7, id);
    request.set_attempt(state_->attempt());
    SetRef(id, request.mutable_record()->mutable_snapshot());
    request.set_root_crc(root_crc);
    absl::Status said = Error(ErrorCode::INTERNAL, "no answer");
    keeper_->Seal(peer, request, [&](const absl::StatusOr<v1::SealResponse>& answer) { said = answer.status(); });
    return said;
  }
  static uint32_t RootOf(const SnapshotId& id) { return region::RootCrc(region::CrcsOf(region::ContentOf(id))); }
  absl::StatusOr<v1::DescribeResponse> Describe(const SnapshotId& id, const std::string& user = "1000",
                                                const std::string& peer = "a", uint64_t first = 0,
                                                uint64_t chunks = 0) {
    v1::DescribeRequest request;
    *request.mutable_copy() = NameOfCopy("gpt", 7, id);
    request.set_user(user);
    request.set_attempt(1);
    request.set_first_chunk(first);
    request.set_chunks(chunks);
    absl::StatusOr<v1::DescribeResponse> said = Error(ErrorCode::INTERNAL, "no answer");
    keeper_->Describe(peer, request, [&](auto answer) { said = std::move(answer); });
    return said;
  }
  template <typename Response>
  absl::StatusOr<transport::BulkEnd> Dial(const SnapshotId& id, const Response& said, const std::string& peer = "a") {
    transport::Hello hello;
    hello.token = *TokenOf(said.token());
    hello.name = {peer, "gpt", 7, id, said.slot()};
    return keeper_->Redeem(peer, hello);
  }
  // The first `chunks` of it arrive.
  static void Arrive(const transport::BulkEnd& end, const SnapshotId& id, size_t chunks) {
    const auto& receive = std::get<transport::ServedReceive>(end.end);
    const std::vector<std::byte> content = region::ContentOf(id);
    const std::vector<uint32_t> crcs = region::CrcsOf(content);
    for (size_t i = 0; i < chunks; ++i) {
      std::memcpy(receive.target.bytes.data() + i * region::kTestChunkBytes,
                  content.data() + i * region::kTestChunkBytes, region::kTestChunkBytes);
      ASSERT_TRUE(receive.target.verified(static_cast<uint32_t>(i), crcs[i]).ok());
    }
  }
  void Bring(const SnapshotId& id) {
    const auto offered = Offer(OfferOf(id));
    ASSERT_TRUE(offered.ok()) << offered.status();
    const auto end = Dial(id, *offered);
    ASSERT_TRUE(end.ok()) << end.status();
    Arrive(*end, id, 3);
    ASSERT_TRUE(Seal(id, RootOf(id)).ok());
  }
  bool Held(const SnapshotId& id) {
    for (const region::PeerEntry& entry : store().List())
      if (entry.id == id) return entry.held;
    return false;
  }

  FakeClock clock_;
  std::unique_ptr<Loop> loop_ = *Loop::Create(clock_, 64);
  InlineExecutor work_;
  std::shared_ptr<const v1::State> state_;
  std::optional<HeldSnapshot> own_;
  int changes_ = 0;
  std::set<region::PeerKey> wanted_;
  std::unique_ptr<CopyKeeper> keeper_;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_COPY_KEEPER_FIXTURE_H_
