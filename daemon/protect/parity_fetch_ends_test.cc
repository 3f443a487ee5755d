// A rebuild on threads of the transport, its end in the middle, and what a holder of parity tells of the lost image.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <utility>
#include <vector>

#include "daemon/protect/parity_fetch.h"
#include "daemon/protect/parity_test_util.h"

namespace ckptd::protect {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// -------------------------------------------------------------------------------------------------- threads, the end

TEST(ParityFetchEndsTest, SourcesBringTheirChunksOnThreadsOfTheirOwn) {
  ParityRestore restore({4, 2}, 5, "x", {2});
  restore.Begin();
  while (restore.ended.empty()) {
    restore.Answers();
    if (restore.agents.transfers.empty()) break;
    std::vector<std::pair<TestAgents::TransferPtr, absl::Status>> brought;
    while (!restore.agents.transfers.empty()) brought.emplace_back(restore.agents.Take(), absl::OkStatus());
    std::vector<std::thread> threads;
    threads.reserve(brought.size());
    for (auto& [transfer, status] : brought)
      threads.emplace_back(
          [&restore, &transfer = transfer, &status = status] { status = restore.agents.BringAll(*transfer); });
    for (std::thread& thread : threads) thread.join();
    for (auto& [transfer, status] : brought) transfer->done(status);
    restore.Settle();
  }
  ASSERT_TRUE(restore.Status().ok()) << restore.Status();
  EXPECT_TRUE(restore.Whole());
}

TEST(ParityFetchEndsTest, WhoIsDestroyedInTheMiddleLeavesNothing) {
  ParityRestore restore({3, 1}, 3, "x");
  restore.Begin();
  restore.Answers();
  ASSERT_EQ(restore.agents.moves, 3);
  std::vector<TestAgents::TransferPtr> transfers(restore.agents.transfers.begin(), restore.agents.transfers.end());
  restore.agents.transfers.clear();
  ASSERT_TRUE(TestAgents::Bring(*transfers[0], 0).ok());
  ASSERT_TRUE(TestAgents::Bring(*transfers[1], 0).ok());
  restore.fetch.reset();
  EXPECT_EQ(restore.agents.moves, 0);
  EXPECT_FALSE(TestAgents::Bring(*transfers[2], 0).ok()) << "a thread of the transport may be in the middle of it";
  TestBytes bytes(restore.group.images[3].size());
  ASSERT_TRUE(restore.into.file->Read(0, bytes).ok());
  EXPECT_EQ(bytes, TestBytes(bytes.size())) << "nothing is written any more";
  const std::weak_ptr<void> memory = transfers[0]->target.keep;
  EXPECT_FALSE(memory.expired());
  transfers.clear();
  restore.Settle();
  EXPECT_TRUE(memory.expired());
  EXPECT_TRUE(restore.ended.empty());
}

// ------------------------------------------------------------------------------------------------- what the image was

TEST(ParityDescribeTest, AHolderOfParityTellsWhatTheImageWas) {
  ParityRestore restore({3, 1}, 2, "x");
  std::vector<absl::StatusOr<v1::DescribeResponse>> told;
  const auto describe = [&] {
    restore.fetch->Describe({TestGroup::kId, restore.Sources()},
                            [&](const absl::StatusOr<v1::DescribeResponse>& answer) { told.push_back(answer); });
  };
  restore.agents.says =
      [](const TestAgents::Question& question) -> std::optional<absl::StatusOr<v1::DescribeResponse>> {
    EXPECT_TRUE(question.request.has_parity());
    EXPECT_EQ(question.request.copy().rank(), 2u);
    EXPECT_EQ(question.request.user(), "1000");
    EXPECT_EQ(question.request.attempt(), 2u);
    if (question.agent == "a") return Error(ErrorCode::NOT_FOUND, "not here");
    return std::nullopt;
  };
  describe();
  restore.Run();
  ASSERT_EQ(told.size(), 1u);
  ASSERT_TRUE(told[0].ok()) << told[0].status();
  EXPECT_EQ(told[0]->layout().slot_bytes(), restore.group.images[2].size());
  EXPECT_EQ(told[0]->world_size(), 4u);
  EXPECT_EQ(restore.agents.asked["b"], 1);
  restore.agents.says = [](const TestAgents::Question&) -> std::optional<absl::StatusOr<v1::DescribeResponse>> {
    return Error(ErrorCode::TIMEOUT, "no answer");
  };
  describe();
  restore.Run();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(CodeOf(told[1].status()), ErrorCode::TIMEOUT);
  EXPECT_THAT(told[1].status().message(), AllOf(HasSubstr("job gpt rank 2 step 10"), HasSubstr("no answer")));
}

TEST(ParityDescribeTest, ParityThatIsHereIsNotAskedFor) {
  for (const char* here : {"a", "b", "c", "d"}) {
    const Rank lost = *here == 'a' ? 1 : 0;
    ParityRestore restore({3, 1}, lost, here);
    restore.agents.says = [](const TestAgents::Question&) -> std::optional<absl::StatusOr<v1::DescribeResponse>> {
      return Error(ErrorCode::NOT_FOUND, "not here");
    };
    std::vector<absl::StatusOr<v1::DescribeResponse>> told;
    restore.fetch->Describe({TestGroup::kId, restore.Sources()},
                            [&](const absl::StatusOr<v1::DescribeResponse>& answer) { told.push_back(answer); });
    restore.Run();
    ASSERT_EQ(told.size(), 1u) << here;
    ASSERT_TRUE(told[0].ok()) << here << ": " << told[0].status();
    EXPECT_EQ(told[0]->layout().slot_bytes(), restore.group.images[lost].size()) << here;
  }
}

TEST(ParityDescribeTest, AQuestionEndsWithItsOwner) {
  ParityRestore restore({3, 1}, 2, "x");
  int told = 0;
  restore.fetch->Describe({TestGroup::kId, restore.Sources()},
                          [&](const absl::StatusOr<v1::DescribeResponse>&) { ++told; });
  restore.fetch.reset();
  restore.Run();
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace ckptd::protect
