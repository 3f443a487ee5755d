// A restore from several agents' memory at once: who is asked for what, and what happens to the chunks of those who
// fail.
#include "daemon/protect/shared_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "daemon/protect/fetch_fixture.h"

namespace ckptd::protect {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

constexpr size_t kChunks = 16;

// As the restore does it: through CopyFetch.
class SharedFetchTest : public FetchTest {
 protected:
  SharedFetchTest() : FetchTest(kChunks * region::kTestChunkBytes) {}

  struct Move {
    std::string agent;
    ShareOut::Range range;
    FakeCopyCalls::Moved moved;
  };
  // The question that was asked first is answered: the bytes begin to come.
  Move Begin() {
    auto asked = Take(calls_.describes);
    Move move{asked.peer, {asked.request.first_chunk(), asked.request.chunks()}, {}};
    if (asked.answer) asked.answer(Description(++slot_));
    move.moved = Take(calls_.received);
    EXPECT_EQ(move.moved.order.peer, move.agent);
    EXPECT_EQ(move.moved.order.image_bytes, move.range.count * region::kTestChunkBytes);
    return move;
  }
  absl::Status Arrive(const Move& move, size_t number) {
    clock_.Advance(milliseconds(1));
    const size_t at = number * region::kTestChunkBytes;
    const size_t in_image = move.range.first * region::kTestChunkBytes + at;
    std::memcpy(move.moved.target.bytes.data() + at, content_.data() + in_image, region::kTestChunkBytes);
    return move.moved.target.verified(static_cast<uint32_t>(number),
                                      region::CrcsOf(content_)[move.range.first + number]);
  }
  void ArriveAll(const Move& move) {
    for (size_t i = 0; i < move.range.count; ++i) {
      const absl::Status goes_on = Arrive(move, i);
      brought_[move.agent] += 1;
      if (!goes_on.ok()) return move.moved.done(goes_on);
    }
    move.moved.done(absl::OkStatus());
  }
  // Whoever is asked brings all that he is asked for.
  void ArriveTheRest() {
    while (!calls_.describes.empty()) {
      ArriveAll(Begin());
      Settle();
    }
  }
  void ExpectWhole() {
    Settle();
    EXPECT_THAT(ended_, ElementsAre(absl::OkStatus()));
    EXPECT_EQ(InSlot(), content_);
  }
  [[nodiscard]] std::vector<std::string> Asked() const {
    std::vector<std::string> peers;
    for (const auto& asked : calls_.describes) peers.push_back(asked.peer);
    return peers;
  }

  uint32_t slot_ = 0;
  std::map<std::string, size_t> brought_;
};

TEST_F(SharedFetchTest, TwoSourcesBringItTogether) {
  Fetch({"b", "c"});
  EXPECT_THAT(Asked(), ElementsAre("b", "c"));
  const Move b = Begin();
  const Move c = Begin();
  EXPECT_EQ(b.range, (ShareOut::Range{0, 8}));
  EXPECT_EQ(c.range, (ShareOut::Range{8, 4}));
  ArriveAll(b);
  ArriveAll(c);
  ArriveTheRest();
  ExpectWhole();
  EXPECT_EQ(brought_["b"] + brought_["c"], kChunks);
}

TEST_F(SharedFetchTest, OneSourceIsAskedForAllAtOnce) {
  Fetch({"b"});
  ASSERT_THAT(Asked(), ElementsAre("b"));
  EXPECT_EQ(calls_.describes[0].request.chunks(), kChunks);
  Fetch({"a", "b"});
  EXPECT_THAT(Asked(), ElementsAre("b", "b")) << "this node has none";
  EXPECT_EQ(calls_.describes[1].request.chunks(), kChunks);
}

TEST_F(SharedFetchTest, AtMostFourAtOnceAndTheFifthTakesALostOnesPlace) {
  Fetch({"b", "c", "d", "e", "f"});
  EXPECT_THAT(Asked(), ElementsAre("b", "c", "d")) << "these chunks are three ranges: one is free";
  const Move b = Begin();
  Take(calls_.describes).answer(Error(ErrorCode::NOT_FOUND, "not here"));
  EXPECT_THAT(Asked(), ElementsAre("d", "f"));
  ArriveAll(b);
  ArriveTheRest();
  ExpectWhole();
}

TEST_F(SharedFetchTest, WhoFailsInTheMiddleLeavesItsChunksToTheOther) {
  Fetch({"b", "c"});
  const Move b = Begin();
  const Move c = Begin();
  ASSERT_TRUE(Arrive(b, 0).ok());
  b.moved.done(Error(ErrorCode::AGENT_UNREACHABLE, "its node is gone"));
  ArriveAll(c);
  ArriveTheRest();
  ExpectWhole();
  EXPECT_EQ(brought_["c"], kChunks - 1);
  EXPECT_EQ(brought_["b"], 0u) << "asked no more";
}

TEST_F(SharedFetchTest, AChunkThatIsNotTheRecordsIsBroughtByTheOther) {
  Fetch({"b", "c"});
  const Move b = Begin();
  const Move c = Begin();
  const absl::Status damaged = b.moved.target.verified(1, 12345);
  EXPECT_EQ(CodeOf(damaged), ErrorCode::CORRUPT);
  b.moved.done(damaged);
  ArriveAll(c);
  ArriveTheRest();
  ExpectWhole();
  EXPECT_EQ(brought_["c"], kChunks);
}

TEST_F(SharedFetchTest, WhoStandsStillIsRelievedOfWhatItHas) {
  Fetch({"b", "c"});
  const Move b = Begin();
  ArriveAll(Begin());
  Settle();
  ArriveTheRest();
  for (int i = 0; i < 100 && ended_.empty(); ++i) {
    Pass(milliseconds(200));
    ArriveTheRest();
    if (!b.moved.move->cancelled) continue;
    EXPECT_TRUE(ended_.empty()) << "it may write still";
    b.moved.done(Error(ErrorCode::CANCELLED, "cancelled here"));
    Settle();
  }
  ExpectWhole();
  EXPECT_EQ(brought_["c"], kChunks);
}

// Other transfers of this node have their turn first.
TEST_F(SharedFetchTest, WhoHasToWaitForThisNodeIsNotSlow) {
  Fetch({"b", "c"});
  const Move b = Begin();
  b.moved.move->waits = true;
  ArriveAll(Begin());
  Settle();
  ArriveAll(Begin());
  Settle();
  for (int i = 0; i < 10; ++i) Pass(milliseconds(200));
  EXPECT_TRUE(Asked().empty());
  b.moved.move->waits = false;
  Pass(milliseconds(200));
  ASSERT_TRUE(Asked().empty()) << "it has only just begun";
  Pass(seconds(1));
  EXPECT_THAT(Asked(), ElementsAre("c"));
  for (size_t i = 0; i < 7; ++i) (void)Arrive(b, i);
  b.moved.done(Arrive(b, 7));
  Settle();
  const auto asked = Take(calls_.describes);
  EXPECT_TRUE(calls_.received.empty()) << "all has come";
  ExpectWhole();
}

// A chunk of its takes five milliseconds, one of the other's takes one.
TEST_F(SharedFetchTest, ASlowOneEndsWhereTheOtherGoesOn) {
  Fetch({"b", "c"});
  const Move b = Begin();
  ArriveAll(Begin());
  ASSERT_TRUE(Arrive(b, 0).ok());
  Settle();
  ArriveAll(Begin());
  Settle();
  Pass(milliseconds(200));
  const Move taken = Begin();
  EXPECT_EQ(taken.agent, "c");
  EXPECT_EQ(taken.range, (ShareOut::Range{2, 6})) << "the end of it";
  const absl::Status over = Arrive(b, 1);
  EXPECT_EQ(CodeOf(over), ErrorCode::FENCED);
  b.moved.done(over);
  Settle();
  EXPECT_TRUE(Asked().empty()) << "nothing is left to give";
  ArriveAll(taken);
  ExpectWhole();
}

TEST_F(SharedFetchTest, WhoTellsAnotherRecordIsLeftOut) {
  Fetch({"b", "c", "d"});
  const Move b = Begin();
  auto asked = Take(calls_.describes);
  v1::DescribeResponse other = Description(9);
  other.mutable_record()->set_chunk_crc(3, 999);
  asked.answer(other);
  EXPECT_TRUE(calls_.received.empty());
  EXPECT_THAT(Asked(), ElementsAre("d"));
  ArriveAll(b);
  ArriveTheRest();
  ExpectWhole();
  EXPECT_EQ(brought_["c"], 0u);
}

// Who was first to answer was wrong.
TEST_F(SharedFetchTest, WhoWasLeftOutIsAskedWhenTheOthersFail) {
  Fetch({"b", "c"});
  auto first = Take(calls_.describes);
  v1::DescribeResponse wrong = Description(9);
  wrong.mutable_record()->set_chunk_crc(3, 999);
  first.answer(wrong);
  Take(calls_.describes).answer(Description(8));
  const auto moved = Take(calls_.received);
  const absl::Status damaged = moved.target.verified(3, region::CrcsOf(content_)[3]);
  EXPECT_EQ(CodeOf(damaged), ErrorCode::CORRUPT);
  moved.done(damaged);
  Settle();
  EXPECT_THAT(Asked(), ElementsAre("c"));
  EXPECT_EQ(calls_.describes[0].request.chunks(), kChunks) << "all of it";
  ArriveAll(Begin());
  ExpectWhole();
}

TEST_F(SharedFetchTest, WhenAllFailTheLastReasonIsTold) {
  Fetch({"b", "c"});
  Take(calls_.describes).answer(Error(ErrorCode::TIMEOUT, "no answer"));
  Take(calls_.describes).answer(Error(ErrorCode::NOT_FOUND, "not here"));
  Settle();
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].message(), "job gpt rank 0 step 10: agent c: not here");
}

// The transport asks five times; the other one has it.
TEST_F(SharedFetchTest, TheLastOneThatIsLeftIsWaitedFor) {
  Fetch({"b", "c"});
  const Move b = Begin();
  const Move c = Begin();
  const absl::Status silent = Error(ErrorCode::TIMEOUT, "no answer");
  absl::Status told;
  const auto renew = [&](const Move& move) {
    move.moved.order.renew([&](const absl::StatusOr<transport::TransferToken>& token) { told = token.status(); });
    Take(calls_.describes).answer(silent);
    return CodeOf(told);
  };
  EXPECT_EQ(renew(b), ErrorCode::NOT_FOUND) << "ends the transfer";
  b.moved.done(told);
  EXPECT_EQ(renew(c), ErrorCode::TIMEOUT);
}

TEST_F(SharedFetchTest, AnAgentThatBeganAnewIsAskedAgain) {
  Fetch({"b", "c"});
  const Move b = Begin();
  const Move c = Begin();
  b.moved.done(Error(ErrorCode::FENCED, "the other agent has begun anew"));
  EXPECT_THAT(Asked(), ElementsAre("b"));
  ArriveAll(c);
  ArriveTheRest();
  ExpectWhole();
  EXPECT_NE(brought_["b"], 0u);
}

// As the transport does it; time stands still meanwhile.
TEST_F(SharedFetchTest, SourcesBringTheirChunksOnThreadsOfTheirOwn) {
  Fetch({"b", "c", "d"});
  const std::vector<uint32_t> crcs = region::CrcsOf(content_);
  while (!calls_.describes.empty()) {
    std::vector<std::pair<Move, absl::Status>> moves;
    while (!calls_.describes.empty()) moves.emplace_back(Begin(), absl::OkStatus());
    std::vector<std::thread> threads;
    threads.reserve(moves.size());
    for (auto& [move, status] : moves) {
      threads.emplace_back([this, &crcs, &move = move, &status = status] {
        const auto from = content_.begin() + static_cast<ptrdiff_t>(move.range.first * region::kTestChunkBytes);
        std::copy_n(from, move.moved.target.bytes.size(), move.moved.target.bytes.begin());
        for (uint32_t i = 0; i < move.range.count && status.ok(); ++i)
          status = move.moved.target.verified(i, crcs[move.range.first + i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& [move, status] : moves) move.moved.done(status);
    Settle();
  }
  ExpectWhole();
}

TEST_F(SharedFetchTest, WithItsOwnerAllTransfersEnd) {
  Fetch({"b", "c"});
  const Move b = Begin();
  const Move c = Begin();
  fetch_.reset();
  EXPECT_EQ(CodeOf(Arrive(b, 0)), ErrorCode::FENCED) << "a thread of the transport may still be at it";
  b.moved.done(absl::OkStatus());
  c.moved.done(absl::OkStatus());
  EXPECT_TRUE(ended_.empty());
}

}  // namespace
}  // namespace ckptd::protect
