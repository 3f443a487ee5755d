// What a node keeps for others: who may ask, what becomes of fills, tokens and pins. A real region; the bytes are put
// where the transport would put them. The loop's time stands still until a test moves it.
#include "daemon/protect/copy_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <utility>

#include "daemon/format/snapshot_ref.h"
#include "daemon/protect/copy_messages.h"
#include "daemon/region/peer_test_util.h"

namespace ckptd::protect {
namespace {

using region::CompleteIn;
using region::ContentOf;
using std::chrono::seconds;
using ::testing::ElementsAre;

constexpr SnapshotId kTen{1, 10};
constexpr SnapshotId kTwenty{1, 20};
constexpr SnapshotId kThirty{1, 30};

class CopyKeeperTest : public region::PeerStoreTest {
 protected:
  CopyKeeperTest() {
    Decide(1, "a");
    Make();
  }

  void Make() {
    keeper_ = std::make_unique<CopyKeeper>(
        *loop_, clock_, *region_, work_,
        CopyKeeper::Handler{[this](const std::string& job) { return job == "gpt" ? state_ : nullptr; },
                            [this](const std::string&, Rank, const SnapshotId&) {
                              if (own_.has_value()) return absl::StatusOr<HeldSnapshot>(*own_);
                              return absl::StatusOr<HeldSnapshot>(Error(ErrorCode::NOT_FOUND, "in no slot"));
                            },
                            [this](const std::string&) { ++changes_; }});
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
    for (Nanos left = time; left > Nanos(0); left -= seconds(1)) {
      clock_.Advance(seconds(1));
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
  absl::StatusOr<v1::OfferResponse> OfferOnce(const v1::OfferRequest& request, const std::string& peer = "a") {
    absl::StatusOr<v1::OfferResponse> said = Error(ErrorCode::INTERNAL, "no answer");
    keeper_->Offer(peer, request, [&](auto answer) { said = std::move(answer); });
    return said;
  }
  // Asked again once while memory is prepared, as its owner does.
  absl::StatusOr<v1::OfferResponse> Offer(const v1::OfferRequest& request, const std::string& peer = "a") {
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
  static uint32_t RootOf(const SnapshotId& id) { return region::RootCrc(region::CrcsOf(ContentOf(id))); }
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
    const std::vector<std::byte> content = ContentOf(id);
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
  std::unique_ptr<CopyKeeper> keeper_;
};

// ---------------------------------------------------------------------------------------------------------- incoming

TEST_F(CopyKeeperTest, ACopyIsCompleteWhenEveryChunkIsVerifiedAndTheOwnerHasSealedIt) {
  const auto offered = Offer(OfferOf(kTen));
  ASSERT_TRUE(offered.ok()) << offered.status();
  const auto end = Dial(kTen, *offered);
  ASSERT_TRUE(end.ok()) << end.status();
  Arrive(*end, kTen, 2);
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen))), ErrorCode::REFUSED) << "a chunk is missing";
  Arrive(*end, kTen, 3);
  EXPECT_EQ(CodeOf(Seal(kTen, RootOf(kTen) + 1)), ErrorCode::CORRUPT) << "its owner has other bytes";
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

TEST_F(CopyKeeperTest, ACopyThatWasDamagedWhileTheAgentWasAwayIsOfferedToNobody) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  keeper_.reset();
  Restart();
  for (const auto& file : std::filesystem::directory_iterator(PeerDir())) {
    if (file.path().filename().string().rfind("slot-", 0) != 0) continue;
    std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(5000);
    bytes.put('\x55');
  }
  Make();
  keeper_->VerifyAdopted();
  Settle();
  EXPECT_TRUE(keeper_->CopiesOf("gpt").empty());
  EXPECT_EQ(changes_, 2) << "it came, and it went";
  EXPECT_EQ(CodeOf(Describe(kTen).status()), ErrorCode::NOT_FOUND);
}

}  // namespace
}  // namespace ckptd::protect
