// A restore from other agents' memory: who is asked what it looks like, when the next one is, and which bytes reach the
// slot.
#include "daemon/protect/copy_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <utility>

#include "daemon/protect/fetch_fixture.h"

namespace ckptd::protect {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

absl::Status Silent() { return Error(ErrorCode::TIMEOUT, "no answer"); }

class CopyFetchTest : public FetchTest {
 protected:
  CopyFetchTest() : FetchTest(region::kTestSlotBytes) {}

  // A copy that this node has itself.
  absl::StatusOr<HeldSnapshot> Own(const SnapshotId& id) override {
    if (own_ == nullptr) return Error(ErrorCode::NOT_FOUND, "not here");
    auto record = region::MakeRecord(set_.head(), region::HeadOf(id.step, 1), region::CrcsOf(content_));
    EXPECT_TRUE(record.ok()) << record.status();
    return HeldSnapshot{set_.head(), std::make_shared<region::SlotRecord>(*record), own_, nullptr};
  }
  // Who is asked next answers that it has it; the bytes begin to come.
  FakeCopyCalls::Moved Begin(uint32_t slot = 3) {
    const auto asked = Take(calls_.describes);
    if (asked.answer) asked.answer(Description(slot));
    return Take(calls_.received);
  }
  absl::Status Arrive(const FakeCopyCalls::Moved& moved, uint32_t chunk) {
    const size_t at = chunk * region::kTestChunkBytes;
    std::memcpy(moved.target.bytes.data() + at, content_.data() + at, region::kTestChunkBytes);
    return moved.target.verified(chunk, region::CrcsOf(content_)[chunk]);
  }
  // What the holder said to a question for another token, and what the transport is told.
  absl::Status Renew(const FakeCopyCalls::Moved& moved, const absl::StatusOr<v1::DescribeResponse>& said) {
    absl::Status told = Error(ErrorCode::INTERNAL, "no answer");
    moved.order.renew([&](const absl::StatusOr<transport::TransferToken>& token) { told = token.status(); });
    EXPECT_EQ(calls_.describes.back().request.attempt(), attempt_);
    Take(calls_.describes).answer(said);
    return told;
  }

  void Describe(std::vector<std::string> sources) {
    fetch_->Describe({kParent, std::move(sources)},
                     [this](const absl::StatusOr<v1::DescribeResponse>& told) { told_.push_back(told); });
  }
  [[nodiscard]] std::vector<std::string> Asked() const {
    std::vector<std::string> peers;
    for (const auto& asked : calls_.describes) peers.push_back(asked.peer);
    return peers;
  }

  std::shared_ptr<region::SlotFile> own_;
  std::vector<absl::StatusOr<v1::DescribeResponse>> told_;
};

TEST_F(CopyFetchTest, WhoDoesNotAnswerForASecondIsNotWaitedFor) {
  Describe({"b", "c", "d"});
  Pass(milliseconds(999));
  EXPECT_THAT(Asked(), ElementsAre("b"));
  Pass(milliseconds(1));
  ASSERT_THAT(Asked(), ElementsAre("b", "c"));
  const auto b = Take(calls_.describes);
  Take(calls_.describes).answer(Description(3));
  Settle();
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0]->slot(), 3u);
  b.answer(Silent());
  Pass(seconds(20));
  EXPECT_EQ(told_.size(), 1u);
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(CopyFetchTest, WhoHasNothingIsFollowedAtOnce) {
  Describe({"b", "c"});
  Take(calls_.describes).answer(Error(ErrorCode::NOT_FOUND, "not here"));
  ASSERT_THAT(Asked(), ElementsAre("c"));
  Take(calls_.describes).answer(Silent());
  Settle();
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_EQ(told_[0].status().message(), "job gpt rank 0 step 10: agent c: no answer");
}

// The last one has nothing, but another one has not said so.
TEST_F(CopyFetchTest, AnAnswerThatComesLateCounts) {
  Describe({"b", "c"});
  Pass(seconds(1));
  const auto b = Take(calls_.describes);
  Take(calls_.describes).answer(Error(ErrorCode::NOT_FOUND, "not here"));
  Settle();
  EXPECT_TRUE(told_.empty());
  b.answer(Description(3));
  Settle();
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_TRUE(told_[0].ok());
}

TEST_F(CopyFetchTest, NobodyTellsWhatNobodyHas) {
  Describe({});
  Describe({"a"});
  Settle();
  ASSERT_EQ(told_.size(), 2u);
  EXPECT_EQ(told_[0].status().message(), "job gpt rank 0 step 10: nobody has a copy");
  EXPECT_EQ(told_[1].status().message(), "job gpt rank 0 step 10: not here");
}

TEST_F(CopyFetchTest, WhatThisNodeHasIsToldWithoutAQuestion) {
  own_ = set_.FileOf(1);
  Describe({"b", "a"});
  ASSERT_EQ(told_.size(), 1u);
  EXPECT_TRUE(told_[0].ok());
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(CopyFetchTest, WithItsOwnerTheQuestionsEnd) {
  Describe({"b", "c"});
  const auto b = Take(calls_.describes);
  fetch_.reset();
  b.answer(Description(3));
  Pass(seconds(20));
  EXPECT_TRUE(told_.empty());
  EXPECT_THAT(Asked(), IsEmpty());
}

TEST_F(CopyFetchTest, EveryChunkIsTheOneThatTheRecordTellsOf) {
  Fetch({"b", "c"});
  ASSERT_EQ(calls_.describes.size(), 1u);
  EXPECT_EQ(calls_.describes[0].peer, "b");
  EXPECT_EQ(calls_.describes[0].request.user(), "1000");
  EXPECT_EQ(calls_.describes[0].request.attempt(), 2u);
  const FakeCopyCalls::Moved moved = Begin();
  EXPECT_EQ(CodeOf(moved.target.verified(0, 12345)), ErrorCode::CORRUPT);
  for (const uint32_t chunk : {2, 0, 1}) ASSERT_TRUE(Arrive(moved, chunk).ok());
  moved.done(absl::OkStatus());
  Settle();
  EXPECT_THAT(ended_, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(InSlot(), content_);
  EXPECT_FALSE(calls_.move_exists);
}

TEST_F(CopyFetchTest, WhoDoesNotAnswerOrHasNothingIsFollowedByTheNext) {
  Fetch({"b", "c", "d"});
  Take(calls_.describes).answer(Silent());
  Take(calls_.describes).answer(Error(ErrorCode::NOT_FOUND, "not here"));
  ASSERT_EQ(calls_.describes.size(), 1u);
  EXPECT_EQ(calls_.describes[0].peer, "d");
  const FakeCopyCalls::Moved moved = Begin();
  moved.done(Error(ErrorCode::CORRUPT, "chunk 1"));
  Settle();
  ASSERT_EQ(ended_.size(), 1u) << "nobody is left";
  EXPECT_EQ(CodeOf(ended_[0]), ErrorCode::CORRUPT);
}

TEST_F(CopyFetchTest, ALayoutThatIsNotTheSlotsIsNotMoved) {
  Fetch({"b"});
  v1::DescribeResponse other = Description(3);
  other.mutable_layout()->set_header_crc(999);
  Take(calls_.describes).answer(other);
  EXPECT_TRUE(calls_.received.empty());
  Settle();
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(CodeOf(ended_[0]), ErrorCode::CORRUPT);
}

TEST_F(CopyFetchTest, WhoHasNotHeardOfTheAttemptIsAskedAgainForAWhile) {
  Fetch({"b"});
  for (int i = 0; i < 3; ++i) {
    ASSERT_THAT(Asked(), ElementsAre("b"));
    Take(calls_.describes).answer(Error(ErrorCode::BUSY, "attempt 2 is not decided yet"));
    Pass(seconds(4));
  }
  Take(calls_.describes).answer(Error(ErrorCode::BUSY, "attempt 2 is not decided yet"));
  Settle();
  EXPECT_THAT(Asked(), IsEmpty());
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(CodeOf(ended_[0]), ErrorCode::BUSY);
}

// The trainer started anew, and the holder knows it, maybe before this agent does.
TEST_F(CopyFetchTest, WhoHasHeardOfALaterAttemptIsAskedInItsName) {
  const absl::Status later = Error(ErrorCode::FENCED, "attempt 3 follows attempt 2");
  Fetch({"b"});
  Take(calls_.describes).answer(later);
  Pass(std::chrono::milliseconds(500));
  ASSERT_EQ(calls_.describes.size(), 1u);
  EXPECT_EQ(calls_.describes[0].request.attempt(), 2u);
  attempt_ = 3;
  Take(calls_.describes).answer(later);
  Pass(std::chrono::milliseconds(100));
  ASSERT_EQ(calls_.describes.size(), 1u);
  EXPECT_EQ(calls_.describes[0].request.attempt(), 3u);
  const FakeCopyCalls::Moved moved = Begin();
  attempt_ = 4;
  EXPECT_TRUE(Renew(moved, Description(3)).ok());
  for (const uint32_t chunk : {2, 0, 1}) ASSERT_TRUE(Arrive(moved, chunk).ok());
  moved.done(absl::OkStatus());
  Settle();
  EXPECT_THAT(ended_, ElementsAre(absl::OkStatus()));
}

TEST_F(CopyFetchTest, WhoRefusesForLongerThanNewsTakeIsLost) {
  Fetch({"b"});
  Take(calls_.describes).answer(Error(ErrorCode::FENCED, "attempt 3 follows attempt 2"));
  Pass(seconds(1));
  Take(calls_.describes).answer(Error(ErrorCode::FENCED, "attempt 3 follows attempt 2"));
  Settle();
  EXPECT_THAT(Asked(), IsEmpty());
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(CodeOf(ended_[0]), ErrorCode::FENCED);
}

// BUSY alone would be asked again until the transfer's deadline.
TEST_F(CopyFetchTest, WhoNeverHearsOfTheAttemptIsNotWaitedForInTheMiddleEither) {
  Fetch({"b"});
  const FakeCopyCalls::Moved moved = Begin();
  const absl::Status busy = Error(ErrorCode::BUSY, "attempt 2 is not decided yet");
  EXPECT_EQ(CodeOf(Renew(moved, busy)), ErrorCode::BUSY);
  Pass(seconds(9));
  EXPECT_TRUE(Renew(moved, Description(3)).ok());
  Pass(seconds(9));
  EXPECT_EQ(CodeOf(Renew(moved, busy)), ErrorCode::BUSY) << "counted anew";
  Pass(seconds(11));
  EXPECT_EQ(CodeOf(Renew(moved, busy)), ErrorCode::NOT_FOUND);
}

// The holder's agent restarted: its copy is there, the transfer is not.
TEST_F(CopyFetchTest, WhoBeganAnewIsAskedFromTheBeginning) {
  Fetch({"b"});
  for (const uint32_t slot : {3, 1, 2}) {
    const FakeCopyCalls::Moved moved = Begin(slot);
    EXPECT_EQ(moved.order.name.slot, slot);
    const absl::Status told = Renew(moved, Description(slot + 7));
    EXPECT_EQ(CodeOf(told), ErrorCode::FENCED);
    moved.done(told);
    Settle();
  }
  EXPECT_TRUE(calls_.describes.empty()) << "not for ever";
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(CodeOf(ended_[0]), ErrorCode::FENCED);
}

TEST_F(CopyFetchTest, WithItsOwnerTheTransferEnds) {
  Fetch({"b", "c"});
  FakeCopyCalls::Moved moved = Begin();
  ASSERT_TRUE(calls_.move_exists);
  fetch_.reset();
  EXPECT_FALSE(calls_.move_exists);
  moved.done(absl::OkStatus());
  EXPECT_TRUE(ended_.empty());
}

TEST_F(CopyFetchTest, WhatThisNodeHasIsCheckedAndCopied) {
  own_ = set_.FileOf(1);
  ASSERT_TRUE(own_->Write(0, content_).ok());
  Fetch({"a", "b"});
  Settle();
  EXPECT_THAT(ended_, ElementsAre(absl::OkStatus()));
  EXPECT_EQ(InSlot(), content_);
  EXPECT_TRUE(calls_.describes.empty());
}

TEST_F(CopyFetchTest, ADamagedCopyOfThisNodeIsFollowedByTheNext) {
  own_ = set_.FileOf(1);
  ASSERT_TRUE(own_->Write(0, content_).ok());
  const std::byte other{0xff};
  ASSERT_TRUE(own_->Write(5000, std::span(&other, 1)).ok());
  Fetch({"a", "b"});
  Settle();
  ASSERT_EQ(calls_.describes.size(), 1u);
  EXPECT_EQ(calls_.describes[0].peer, "b");
}

}  // namespace
}  // namespace ckptd::protect
