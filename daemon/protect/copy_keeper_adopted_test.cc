// What a predecessor has left of what this node keeps for others (copy_keeper_fixture.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include "daemon/protect/copy_keeper_fixture.h"

namespace ckptd::protect {
namespace {

using ::testing::ElementsAre;

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

// What is to be read waits for its turn, as all of this node's slots are read first.
class ReadLater final : public Executor {
 public:
  bool Run(std::function<void()> work) override {
    queue_.push_back(std::move(work));
    return true;
  }
  void RunAll() {
    for (; !queue_.empty(); queue_.pop_front()) queue_.front()();
  }

 private:
  std::deque<std::function<void()>> queue_;
};

TEST_F(CopyKeeperTest, TheNextStepDoesNotWaitUntilWhatWasAdoptedIsRead) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  ASSERT_NO_FATAL_FAILURE(Bring(kTwenty));
  keeper_.reset();
  Restart();
  ReadLater later;
  Make(later);
  keeper_->VerifyAdopted();
  ASSERT_NO_FATAL_FAILURE(Bring(kThirty));
  const int changes = changes_;
  later.RunAll();
  Settle();
  EXPECT_THAT(region::CompleteIn(store()), ElementsAre(kTwenty, kThirty));
  EXPECT_TRUE(store().List().at(0).verified && store().List().at(1).verified);
  EXPECT_EQ(changes_, changes) << "what was read of step 10's slot says nothing of step 30";
}

TEST_F(CopyKeeperTest, WhatWasGivenUpBeforeItWasReadTakesNoMemory) {
  ASSERT_NO_FATAL_FAILURE(Bring(kTen));
  keeper_.reset();
  Restart();
  ReadLater later;
  Make(later);
  keeper_->VerifyAdopted();
  ASSERT_TRUE(store().RemoveJob("gpt").ok());
  EXPECT_EQ(store().Usage().held, 0u);
  later.RunAll();
  Settle();
}

}  // namespace
}  // namespace ckptd::protect
