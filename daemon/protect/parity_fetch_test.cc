// An image that is rebuilt from others: which of them are asked, what becomes of the rebuild when one of them is not
// what it should be, and which bytes reach the slot. The other nodes are the test.
#include "daemon/protect/parity_fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "daemon/protect/parity_test_util.h"

namespace ckptd::protect {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

using Question = TestAgents::Question;
using Transfer = TestAgents::Transfer;
using Said = std::optional<absl::StatusOr<v1::DescribeResponse>>;
using Restore = ParityRestore;

// ----------------------------------------------------------------------------------------------------------- losses

TEST(ParityFetchTest, EveryRankOfThreePlusOneComesBack) {
  for (Rank rank = 0; rank < 4; ++rank) {
    Restore restore({3, 1}, rank, "x");
    restore.Begin();
    restore.Run();
    ASSERT_TRUE(restore.Status().ok()) << "rank " << rank << ": " << restore.Status();
    EXPECT_TRUE(restore.Whole()) << "rank " << rank;
    const v1::CopyRecord& record = *restore.ended[0];
    EXPECT_EQ(record.chunk_crc_size(), restore.group.About(rank).record().chunk_crc_size());
    EXPECT_EQ(restore.agents.moves, 0);
    EXPECT_EQ(restore.agents.asked.count(AgentOf(rank)), 0u);
    // Three sources for each byte of the image at most, but for the chunk that is short.
    EXPECT_LE(restore.agents.moved, 3 * (restore.group.images[rank].size() + 3 * TestGroup::kChunk));
  }
}

TEST(ParityFetchTest, EveryTwoOfFourPlusTwoComeBack) {
  for (Rank rank = 0; rank < 6; ++rank) {
    for (Rank other = 0; other < 6; ++other) {
      Restore restore({4, 2}, rank, "x", {other});
      restore.Begin();
      restore.Run();
      ASSERT_TRUE(restore.Status().ok()) << rank << " and " << other << ": " << restore.Status();
      EXPECT_TRUE(restore.Whole()) << rank << " and " << other;
    }
  }
}

// All of a block from some sources before the others begin: as a node that takes part in few transfers at once.
TEST(ParityFetchTest, NoMoreIsInMemoryThanItMayTake) {
  for (const uint64_t chunks : {1, 6, 7}) {
    Restore restore({3, 1}, 3, "x", {}, chunks * TestGroup::kChunk);
    restore.Begin();
    uint64_t most = 0;
    for (restore.Answers(); !restore.agents.transfers.empty(); restore.Answers()) {
      uint64_t bytes = 0;
      for (const auto& transfer : restore.agents.transfers) bytes += transfer->bytes.size();
      most = std::max(most, bytes);
      while (!restore.agents.transfers.empty()) restore.agents.Deliver();
    }
    ASSERT_TRUE(restore.Status().ok()) << restore.Status();
    EXPECT_TRUE(restore.Whole());
    EXPECT_EQ(most, (chunks < 6 ? 3 : 6) * TestGroup::kChunk) << chunks;
  }
}

TEST(ParityFetchTest, OneLossTooManyNamesGroupAndLosses) {
  Restore restore({3, 1}, 1, "x", {2});
  restore.Begin();
  restore.Run();
  EXPECT_EQ(CodeOf(restore.Status()), ErrorCode::NOT_FOUND);
  EXPECT_EQ(restore.Status().message(),
            "job gpt rank 1 step 10: parity group of ranks 0,1,2,3 (3+1): ranks 1 and 2 are lost");
  EXPECT_TRUE(restore.agents.asked.empty()) << "before anything is asked";
  Restore three({4, 2}, 5, "x", {2, 3});
  three.Begin();
  three.Run();
  EXPECT_THAT(three.Status().message(),
              HasSubstr("parity group of ranks 0,1,2,3,4,5 (4+2): ranks 2, 3 and 5 are lost"));
}

TEST(ParityFetchTest, ParityThatIsMissingIsNamed) {
  Restore restore({3, 1}, 1, "x");
  restore.agents.says = [](const Question& question) -> Said {
    if (question.request.has_parity() && question.request.parity().stripe() == 0)
      return Error(ErrorCode::NOT_FOUND, "not here");
    return std::nullopt;
  };
  restore.Begin();
  restore.Run();
  EXPECT_EQ(restore.Status().message(),
            "job gpt rank 1 step 10: parity group of ranks 0,1,2,3 (3+1): rank 1 and parity 0 of stripe 0 are lost");
}

TEST(ParityFetchTest, AGroupThatIsNoneIsNotAskedFor) {
  using Change = std::function<void(v1::ParitySources&)>;
  const std::vector<Change> changes = {[](auto& s) { s.clear_ranks(); },
                                       [](auto& s) { s.set_ranks(2, 0); },
                                       [](auto& s) { s.set_ranks(1, 9); },
                                       [](auto& s) { s.set_parity(0); },
                                       [](auto& s) { s.set_parity(4); },
                                       [](auto& s) { s.mutable_blocks(0)->set_stripe(4); },
                                       [](auto& s) { s.mutable_blocks(0)->set_row(1); },
                                       [](auto& s) { s.mutable_data(0)->set_rank(9); }};
  for (size_t i = 0; i < changes.size(); ++i) {
    Restore restore({3, 1}, 1, "x");
    auto sources = std::make_shared<v1::ParitySources>(*restore.Sources());
    changes[i](*sources);
    restore.fetch->Fetch({TestGroup::kId, sources}, restore.into,
                         [&](const absl::StatusOr<v1::CopyRecord>& record) { restore.ended.push_back(record); });
    EXPECT_EQ(CodeOf(restore.Status()), ErrorCode::INVALID_ARGUMENT) << "change " << i;
    EXPECT_TRUE(restore.agents.asked.empty());
  }
}

// ------------------------------------------------------------------------------------------------ sources that fail

TEST(ParityFetchTest, ACorruptChunkIsMadeOfOthersAndItsStripeOnly) {
  Restore restore({4, 2}, 5, "x");
  int corrupt = 0;
  restore.agents.breaks = [&](const Transfer& transfer) {
    if (transfer.order.name.rank != 2 || transfer.bytes.size() <= TestGroup::kChunk || corrupt++ != 0)
      return absl::OkStatus();
    const_cast<Transfer&>(transfer).bytes[TestGroup::kChunk + 5] ^= std::byte{1};
    return absl::OkStatus();
  };
  restore.Begin();
  restore.Run();
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
  EXPECT_GE(corrupt, 2) << "good bytes of the same image are read on";
  EXPECT_EQ(restore.agents.moves, 0);
}

TEST(ParityFetchTest, ACorruptSourceThatNobodyCanDoWithoutIsTheEnd) {
  Restore restore({3, 1}, 3, "x");
  restore.agents.breaks = [&](const Transfer& transfer) {
    if (transfer.order.peer == "b") const_cast<Transfer&>(transfer).bytes[5] ^= std::byte{1};
    return absl::OkStatus();
  };
  restore.Begin();
  restore.Run();
  EXPECT_EQ(CodeOf(restore.Status()), ErrorCode::CORRUPT);
  EXPECT_THAT(restore.Status().message(), HasSubstr("(3+1): ranks 1 and 3 are lost"));
  EXPECT_EQ(restore.agents.moves, 0);
}

// Chunks that are in the slot are not made again, and asked for only when they lie between others that are missing.
TEST(ParityFetchTest, ASecondTryMakesWhatIsMissingOnly) {
  Restore restore({2, 2}, 3, "x");
  restore.Begin();
  restore.Answers();
  ASSERT_EQ(restore.agents.transfers.size(), 2u);
  const auto first = restore.agents.Take();
  const auto second = restore.agents.Take();
  const size_t chunks = region::CrcsOf(second->bytes).size();
  ASSERT_GT(chunks, 3u);
  for (const uint32_t chunk : {0, 2}) ASSERT_TRUE(TestAgents::Bring(*second, chunk).ok());
  ASSERT_TRUE(restore.agents.BringAll(*first).ok());
  const TestBytes mark(8, std::byte{0x77});
  ASSERT_TRUE(restore.into.file->Write(2 * TestGroup::kChunk, mark).ok());
  first->done(absl::OkStatus());
  second->done(Error(ErrorCode::TIMEOUT, "gone"));
  restore.Answers();
  ASSERT_FALSE(restore.agents.transfers.empty());
  for (const auto& transfer : restore.agents.transfers) {
    EXPECT_NE(transfer->order.peer, second->order.peer);
    EXPECT_LE(transfer->bytes.size(), (chunks - 1) * TestGroup::kChunk);
  }
  restore.Run();
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  TestBytes bytes(mark.size());
  ASSERT_TRUE(restore.into.file->Read(2 * TestGroup::kChunk, bytes).ok());
  EXPECT_EQ(bytes, mark) << "it was in the slot";
  const std::span<const std::byte> was(restore.group.images[3].data() + 2 * TestGroup::kChunk, mark.size());
  ASSERT_TRUE(restore.into.file->Write(2 * TestGroup::kChunk, was).ok());
  EXPECT_TRUE(restore.Whole());
}

TEST(ParityFetchTest, AHolderOfAnotherSnapshotIsLost) {
  for (const bool spare : {true, false}) {
    Restore restore(spare ? erasure::Shape{4, 2} : erasure::Shape{3, 1}, 3, "x");
    restore.agents.says = [&](const Question& question) -> Said {
      if (question.agent != "b") return std::nullopt;
      auto told = restore.agents.Tell(question.request);
      if (told.ok()) told->mutable_record()->mutable_snapshot()->set_step(9);
      return told;
    };
    restore.Begin();
    restore.Run();
    EXPECT_EQ(CodeOf(restore.Status()), spare ? ErrorCode::OK : ErrorCode::CORRUPT) << restore.Status();
    EXPECT_EQ(restore.Whole(), spare);
  }
}

TEST(ParityFetchTest, WhoDoesNotAnswerIsAskedOnce) {
  Restore restore({4, 2}, 3, "x");
  restore.agents.says = [](const Question& question) -> Said {
    if (question.agent == "b") return Error(ErrorCode::TIMEOUT, "no answer");
    return std::nullopt;
  };
  restore.Begin();
  restore.Run();
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
  EXPECT_EQ(restore.agents.asked["b"], 1) << "four stripes, and it holds something of each";
}

// Then it is not worth waiting for, now and in the stripes that follow.
TEST(ParityFetchTest, WhoFallsSilentIsNotWaitedForWhenItIsOnStorageToo) {
  for (const bool soon : {true, false}) {
    Restore restore({3, 1}, 3, "x");
    restore.Begin();
    ASSERT_EQ(restore.storage.describes.size(), 1u);
    const auto storage_tells = [&] { Take(restore.storage.describes)(v1::CopyRecord()); };
    if (soon) storage_tells();
    restore.Answers();
    const auto transfer = restore.agents.Take();
    if (!soon) storage_tells();
    absl::Status told;
    transfer->order.renew([&](const absl::StatusOr<transport::TransferToken>& token) { told = token.status(); });
    ASSERT_EQ(restore.agents.questions.size(), 1u);
    restore.agents.questions.front().answer(Error(ErrorCode::TIMEOUT, "no answer"));
    restore.agents.questions.pop_front();
    EXPECT_EQ(CodeOf(told), ErrorCode::NOT_FOUND);
    transfer->done(told);
    restore.Run();
    EXPECT_EQ(CodeOf(restore.Status()), ErrorCode::NOT_FOUND) << restore.Status();
  }
}

// A connection breaks, and the question for another token is not answered.
TEST(ParityFetchTest, WhoFallsSilentInTheMiddleIsWaitedForOnlyWhenNobodyElseIsLeft) {
  for (const bool spare : {true, false}) {
    Restore restore(spare ? erasure::Shape{4, 2} : erasure::Shape{3, 1}, 3, "x");
    restore.Begin();
    restore.Answers();
    const auto transfer = restore.agents.Take();
    absl::Status told;
    transfer->order.renew([&](const absl::StatusOr<transport::TransferToken>& token) { told = token.status(); });
    ASSERT_EQ(restore.agents.questions.size(), 1u);
    restore.agents.questions.front().answer(Error(ErrorCode::TIMEOUT, "no answer"));
    restore.agents.questions.pop_front();
    EXPECT_EQ(CodeOf(told), spare ? ErrorCode::NOT_FOUND : ErrorCode::TIMEOUT);
    if (spare) transfer->done(told);
    if (!spare) restore.agents.transfers.push_back(transfer);
    restore.Run();
    ASSERT_TRUE(restore.Status().ok()) << restore.Status();
    EXPECT_TRUE(restore.Whole());
  }
}

TEST(ParityFetchTest, AHolderThatVanishesInTheMiddleIsReplaced) {
  Restore restore({4, 2}, 5, "x");
  int broken = 0;
  restore.agents.breaks = [&](const Transfer& transfer) {
    if (transfer.order.peer != "e") return absl::OkStatus();
    ++broken;
    EXPECT_TRUE(TestAgents::Bring(transfer, 0).ok());
    return Error(ErrorCode::AGENT_UNREACHABLE, "connection refused");
  };
  restore.Begin();
  restore.Run();
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
  EXPECT_EQ(broken, 1);
}

// Its agent restarted: what it holds is there, the transfer is not.
TEST(ParityFetchTest, WhoBeganAnewIsReadAgain) {
  Restore restore({3, 1}, 3, "x");
  int broken = 0;
  restore.agents.breaks = [&](const Transfer& transfer) {
    if (transfer.order.peer != "b" || broken++ == 1) return absl::OkStatus();
    return broken == 1 ? Error(ErrorCode::FENCED, "the other agent has begun anew") : absl::OkStatus();
  };
  restore.Begin();
  restore.Run();
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
  restore.agents.breaks = [](const Transfer& transfer) {
    return transfer.order.peer == "b" ? Error(ErrorCode::FENCED, "anew") : absl::OkStatus();
  };
  restore.ended.clear();
  restore.Begin();
  restore.Run();
  EXPECT_EQ(CodeOf(restore.Status()), ErrorCode::FENCED) << "not for ever";
}

TEST(ParityFetchTest, WhoHasNotHeardOfTheAttemptIsAskedAgainForAWhile) {
  Restore restore({3, 1}, 3, "x");
  restore.agents.says = [](const Question& question) -> Said {
    if (question.agent == "b") return Error(ErrorCode::BUSY, "attempt 2 is not decided yet");
    return std::nullopt;
  };
  restore.Begin();
  for (int second = 0; second < 9; ++second) {
    restore.Run();
    restore.clock.Advance(seconds(1));
  }
  EXPECT_TRUE(restore.ended.empty());
  EXPECT_EQ(restore.agents.asked["b"], 9);
  restore.agents.says = nullptr;
  restore.Run();
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
}

// Its bytes are what its own record says, and nothing that was rebuilt with it is what the lost image was.
TEST(ParityFetchTest, ParityOfOtherImagesIsLost) {
  for (const bool spare : {true, false}) {
    Restore restore(spare ? erasure::Shape{4, 2} : erasure::Shape{3, 1}, 3, "x");
    for (auto& [at, bytes] : restore.group.parity) {
      if (at.second == 0) bytes[7] ^= std::byte{1};
    }
    restore.Begin();
    restore.Run();
    EXPECT_EQ(CodeOf(restore.Status()), spare ? ErrorCode::OK : ErrorCode::CORRUPT) << restore.Status();
    EXPECT_EQ(restore.Whole(), spare);
    const char* said = spare ? "" : "rank 3 and parity 0 of stripe";
    EXPECT_THAT(restore.Status().message(), HasSubstr(said));
  }
}

// Whoever brings the last bytes is not to blame.
TEST(ParityFetchTest, TheParityIsLostAlsoWhenAnImageComesLast) {
  Restore restore({4, 2}, 3, "x");
  for (auto& [at, bytes] : restore.group.parity) {
    if (at.second == 0) bytes[7] ^= std::byte{1};
  }
  restore.Begin();
  for (int turn = 0; turn < 20 && restore.ended.empty(); ++turn) {
    restore.Answers();
    std::reverse(restore.agents.transfers.begin(), restore.agents.transfers.end());
    while (!restore.agents.transfers.empty()) restore.agents.Deliver();
    restore.Settle();
  }
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
}

TEST(ParityFetchTest, ARecordThatNothingCouldBeRebuiltByIsForgotten) {
  Restore restore({4, 2}, 3, "x");
  restore.agents.says = [&](const Question& question) -> Said {
    if (!question.request.has_parity() || question.request.parity().row() != 0) return std::nullopt;
    auto told = restore.agents.Tell(question.request);
    for (uint32_t& crc : *told->mutable_record()->mutable_chunk_crc()) crc ^= 1;
    return told;
  };
  restore.Begin();
  restore.Run();
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
}

// ---------------------------------------------------------------------------------------------------- what is near

TEST(ParityFetchTest, WhatIsHereIsNotAskedFor) {
  Restore restore({3, 1}, 3, "b");
  restore.Begin();
  restore.Run();
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
  EXPECT_EQ(restore.agents.asked.count("b"), 0u);
  EXPECT_EQ(restore.own_images, 2) << "its rank gives a block to two of the three stripes";
  EXPECT_EQ(restore.own_parities, 1) << "and its node keeps the parity of the third";
}

TEST(ParityFetchTest, AGroupThatIsAllHereNeedsNoNetwork) {
  Restore restore({4, 2}, 3, "b", {1});
  restore.linked = false;
  restore.Begin("b");
  restore.Run();
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
}

}  // namespace
}  // namespace ckptd::protect
