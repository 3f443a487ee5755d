#include "daemon/membership/incarnation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "daemon/base/errors.h"
#include "daemon/os/posix_files.h"
#include "daemon/os/testing/files_around.h"
#include "daemon/os/testing/sim_files.h"
#include "daemon/os/testing/temp_dir.h"

namespace ckptd::membership {
namespace {

using ::testing::HasSubstr;

void MakeFile(Files& files, const std::string& path) {
  OpenOptions options;
  options.write = true;
  options.create = true;
  ASSERT_TRUE(files.Open(path, options).ok()) << path;
}

TEST(Incarnation, EachIsHigherThanAllBefore) {
  const TempDir dir;
  for (uint64_t i = 1; i <= 5; ++i) {
    auto number = ClaimIncarnation(PosixFiles(), dir.path());
    ASSERT_TRUE(number.ok()) << number.status();
    EXPECT_EQ(*number, i);
  }
  EXPECT_EQ(PosixFiles().ReadDir(dir.path(), 100)->size(), 1U) << "the older ones are gone";
}

TEST(Incarnation, AClockPushesThemUpAndNeverDown) {
  const TempDir dir;
  uint64_t next = 0;
  for (auto [seconds, expected] :
       {std::pair<uint64_t, uint64_t>{1000, 1000}, {500, 1001}, {1001, 1002}, {2000, 2000}}) {
    auto number = ClaimIncarnation(PosixFiles(), dir.path(), seconds);
    ASSERT_TRUE(number.ok()) << number.status();
    EXPECT_EQ(*number, expected);
    EXPECT_GT(*number, next);
    next = *number;
  }
}

TEST(Incarnation, ForeignNamesCountForNothingAndStay) {
  const TempDir dir;
  for (const char* name : {"x", "incarnation-7", "incarnation-00000000000000000x99", "incarnation-00000000000000000042",
                           "incarnation-99999999999999999999"})
    MakeFile(PosixFiles(), dir.path() + "/" + name);
  EXPECT_EQ(*ClaimIncarnation(PosixFiles(), dir.path()), 43U);
  EXPECT_EQ(PosixFiles().ReadDir(dir.path(), 100)->size(), 5U);
}

TEST(Incarnation, NoNumberIsGivenTwice) {
  const TempDir dir("/dev/shm");  // others may be writing to the disk
  std::vector<uint64_t> numbers(8 * 20);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 20; ++i) numbers[t * 20 + i] = ClaimIncarnation(PosixFiles(), dir.path()).value_or(0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(numbers.begin(), numbers.end());
  EXPECT_GT(numbers.front(), 0U);
  EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end());
}

// Two others start between the look and the claim of a third: the name that the third finds free was used, and removed.
TEST(Incarnation, ANumberThatWasUsedAndRemovedIsNotGivenAgain) {
  class OthersAreFaster final : public FilesAround {
   public:
    explicit OthersAreFaster(Files& inner) : FilesAround(inner) {}
    absl::StatusOr<std::vector<DirEntry>> ReadDir(const std::string& path, size_t max_entries) override {
      auto entries = inner_.ReadDir(path, max_entries);
      while (others.size() < 2) others.push_back(ClaimIncarnation(inner_, path).value_or(0));
      return entries;
    }
    std::vector<uint64_t> others;
  };
  const TempDir dir;
  OthersAreFaster files(PosixFiles());
  auto number = ClaimIncarnation(files, dir.path());
  ASSERT_TRUE(number.ok()) << number.status();
  EXPECT_THAT(files.others, ::testing::ElementsAre(1, 2));
  EXPECT_GT(*number, 2U);
}

// Whatever a power failure leaves, a number that a process may have used is never given again.
TEST(Incarnation, APowerFailureNeverGoesBack) {
  SimFiles files;
  ASSERT_TRUE(files.Mkdir("/node", 0700).ok());
  ASSERT_TRUE(files.SyncDir("/").ok());
  std::vector<std::pair<size_t, uint64_t>> given = {{files.OpCount(), 0}};  // operations when a number was returned
  for (int i = 0; i < 4; ++i) {
    auto number = ClaimIncarnation(files, "/node");
    ASSERT_TRUE(number.ok()) << number.status();
    given.emplace_back(files.OpCount(), *number);
  }
  int disks = 0;
  for (size_t ops = given.front().first; ops <= files.OpCount(); ++ops) {
    uint64_t used = 0;
    for (const auto& [at, number] : given)
      if (at <= ops) used = number;
    for (uint64_t seed = 0; seed < 8; ++seed, ++disks) {
      SimFiles after = files.CrashImage(ops, seed);
      auto number = ClaimIncarnation(after, "/node");
      ASSERT_TRUE(number.ok()) << number.status();
      ASSERT_GT(*number, used) << "after " << ops << " operations, seed " << seed;
    }
  }
  EXPECT_GT(disks, 50) << "else this shows nothing";
}

TEST(Incarnation, WhatTheStorageSaysIsAnError) {
  SimFiles files;
  EXPECT_EQ(CodeOf(ClaimIncarnation(files, "/nothing").status()), ErrorCode::NOT_FOUND);
  ASSERT_TRUE(files.Mkdir("/node", 0700).ok());
  for (size_t call = 0; call < 4; ++call) {  // list, create, close, sync
    files.FailCall(call, EIO);
    EXPECT_EQ(CodeOf(ClaimIncarnation(files, "/node").status()), ErrorCode::STORAGE_IO) << call;
  }
  EXPECT_TRUE(ClaimIncarnation(files, "/node").ok());
}

TEST(Incarnation, TheLastNumberIsTheLast) {
  const TempDir dir;
  MakeFile(PosixFiles(), dir.path() + "/incarnation-18446744073709551615");
  EXPECT_THAT(ClaimIncarnation(PosixFiles(), dir.path()).status().message(), HasSubstr("no number could be claimed"));
}

}  // namespace
}  // namespace ckptd::membership
