#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "daemon/base/callback_scope.h"
#include "daemon/base/clock.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/log.h"
#include "daemon/base/queue.h"
#include "daemon/base/units.h"

namespace ckptd {
namespace {

TEST(Errors, CodeSurvivesStatus) {
  absl::Status status = Error(ErrorCode::REGION_FULL, "job x: needs 3, free 2");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(status), ErrorCode::REGION_FULL);
  EXPECT_EQ(InfoOf(ErrorCode::REGION_FULL).exit_code, 6);
}

TEST(Errors, ForeignStatusGetsARow) { EXPECT_EQ(CodeOf(absl::NotFoundError("x")), ErrorCode::NOT_FOUND); }

TEST(Errors, NumbersAndNamesAreUnique) {
  std::set<uint32_t> numbers;
  std::set<std::string> names;
#define CKPTD_ERROR(name, number, absl_code, exit_code, exception, next_step) \
  EXPECT_TRUE(numbers.insert(number).second) << #name;                        \
  EXPECT_TRUE(names.insert(#name).second) << #name;                           \
  EXPECT_FALSE(std::string(next_step).empty()) << #name;
#include "proto/local/errors.def"
#undef CKPTD_ERROR
}

TEST(Ids, JobNames) {
  EXPECT_TRUE(CheckJobName("gpt-small.v2_x").ok());
  for (const char* bad : {"", ".x", "-x", "a/b", "..", "a b", "\xe2\x80\xae"})
    EXPECT_FALSE(CheckJobName(bad).ok()) << bad;
  EXPECT_TRUE(CheckJobName(std::string(128, 'a')).ok());
  EXPECT_FALSE(CheckJobName(std::string(129, 'a')).ok());
  EXPECT_FALSE(CheckJobName(absl::string_view("a\0b", 3)).ok());
}

TEST(Ids, JobStep) {
  auto both = ParseJobStep("gpt@1000");
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->job, "gpt");
  EXPECT_EQ(*both->step, 1000u);
  EXPECT_FALSE(ParseJobStep("gpt").value().step.has_value());
  EXPECT_FALSE(ParseJobStep("gpt@").ok());
  EXPECT_FALSE(ParseJobStep("gpt@-1").ok());
}

TEST(Units, RoundTrip) {
  EXPECT_EQ(ParseBytes("64 MiB").value(), 64 * kMiB);
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_FALSE(ParseBytes("64 parsecs").ok());
  EXPECT_EQ(ParseDuration("250ms").value(), std::chrono::milliseconds(250));
  EXPECT_FALSE(ParseDuration("5").ok());
  EXPECT_EQ(FormatBytes(1536 * kMiB), "1.5 GiB");
  EXPECT_EQ(FormatDuration(std::chrono::seconds(250)), "4m10s");
}

TEST(Queue, BoundsAndClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.Close();
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(Queue, KeepsTheOrderWhileItGrowsAndTurns) {
  BoundedQueue<int> queue(1000);
  int in = 0;
  int out = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 7; ++i) EXPECT_TRUE(queue.TryPush(in++));
    for (int i = 0; i < 5; ++i) EXPECT_EQ(queue.TryPop(), out++);
  }
  EXPECT_EQ(queue.size(), 400u);
  while (auto next = queue.TryPop()) EXPECT_EQ(*next, out++);
  EXPECT_EQ(out, in);
}

TEST(CallbackScope, WhatIsBoundRunsAsLongAsItLives) {
  std::vector<int> ran;
  auto scope = std::make_unique<CallbackScope>();
  std::function<void(int)> bound = scope->Bind([&ran](int number) { ran.push_back(number); });
  const std::function<void(int)> copy = bound;
  bound(1);
  copy(2);
  scope.reset();
  bound(3);
  copy(4);
  EXPECT_THAT(ran, testing::ElementsAre(1, 2));
}

TEST(Log, NothingThatATerminalObeysIsWritten) {
  testing::internal::CaptureStderr();
  Log(kError, "op")
      .Field("text", "a\n<3>op=forged \x1b[2J\a \xe2\x80\xae\xe2\x81\xa6\xc2\x85\xd8\x9c caf\xc3\xa9 \"\\");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "<3>op=op text=\"a <3>op=forged  [2J       caf\xc3\xa9 \\\"\\\\\"\n");
}

}  // namespace
}  // namespace ckptd
