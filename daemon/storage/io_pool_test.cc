// What is borrowed, given back and lent again.
#include "daemon/storage/io_pool.h"

#include <gtest/gtest.h>

#include "daemon/os/posix_files.h"
#include "daemon/os/testing/temp_dir.h"

namespace ckptd {
namespace {

class IoPoolTest : public ::testing::Test {
 protected:
  int made_ = 0;
  IoPool pool_{[this]() -> absl::StatusOr<std::unique_ptr<IoQueue>> {
    ++made_;
    return MakeInlineIoQueue(2);
  }};
};

TEST_F(IoPoolTest, WhatWasGivenBackIsLentAgain) {
  IoQueue* first = nullptr;
  {
    auto queue = *pool_.BorrowQueue();
    auto other = *pool_.BorrowQueue();
    EXPECT_NE(queue.get(), other.get());
    first = queue.get();  // given back last
  }
  EXPECT_EQ((*pool_.BorrowQueue()).get(), first);
  EXPECT_EQ(made_, 2);
  std::byte* memory = (*pool_.BorrowBuffer()).get();
  EXPECT_EQ((*pool_.BorrowBuffer()).get(), memory);
}

TEST_F(IoPoolTest, OnlySoManyAreKept) {
  std::vector<IoPool::Queue> all;
  for (size_t i = 0; i < IoPool::kKeptQueues + 3; ++i) all.push_back(*pool_.BorrowQueue());
  all.clear();
  made_ = 0;
  for (size_t i = 0; i < IoPool::kKeptQueues + 3; ++i) all.push_back(*pool_.BorrowQueue());
  EXPECT_EQ(made_, 3);
}

TEST_F(IoPoolTest, AQueueComesBackIdle) {
  TempDir dir;
  auto file = *PosixFiles().Open(dir.path() + "/f", {.write = true, .create = true});
  std::vector<std::byte> bytes(100);
  {
    auto queue = *pool_.BorrowQueue();
    ASSERT_TRUE(queue->Submit(WriteRequest(*file, 0, bytes, 1)).ok());
  }
  EXPECT_EQ((*pool_.BorrowQueue())->in_flight(), 0u);
}

}  // namespace
}  // namespace ckptd
