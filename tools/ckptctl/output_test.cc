#include "tools/ckptctl/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"
#include "daemon/base/units.h"
#include "tools/ckptctl/progress.h"

namespace ckptd {
namespace {

using ::testing::HasSubstr;

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({"A", "LONG"});
  table.Add({"wide cell", "x"});
  table.Add({"y", ""});
  EXPECT_EQ(table.Text("  "), "  A          LONG\n  wide cell  x\n  y\n");
}

// Every row of errors.def ends in one of the codes that interfaces.md promises.
TEST(Errors, ExitCodesAreThePromisedOnes) {
  EXPECT_EQ(InfoOf(ErrorCode::INVALID_ARGUMENT).exit_code, 2);
  EXPECT_EQ(InfoOf(ErrorCode::AGENT_UNREACHABLE).exit_code, 3);
  EXPECT_EQ(InfoOf(ErrorCode::NOT_FOUND).exit_code, 4);
  EXPECT_EQ(InfoOf(ErrorCode::CORRUPT).exit_code, 5);
  EXPECT_EQ(InfoOf(ErrorCode::REFUSED).exit_code, 6);
  EXPECT_EQ(InfoOf(ErrorCode::PERMISSION).exit_code, 6);
  EXPECT_EQ(InfoOf(ErrorCode::TIMEOUT).exit_code, 1);
}

TEST(Errors, TheSentenceAndTheNextStep) {
  std::string text = ErrorText(Error(ErrorCode::NOT_FOUND, "job x\x07 is not known"));
  EXPECT_EQ(
      text,
      "ckptctl: job x? is not known\n  next: check the name or path above; ckptctl list shows the steps that exist\n");
}

TEST(Errors, WhatTakesTooLongIsNotARestore) {
  EXPECT_EQ(ErrorText(Error(ErrorCode::TIMEOUT, "no answer yet")),
            "ckptctl: no answer yet\n  next: ckptctl status tells how the agent and its storage are\n");
}

TEST(Colour, NoneWithoutATerminal) { EXPECT_EQ(Coloured(Tone::kBad, "x"), "x"); }

TEST(Progress, OneLine) {
  std::string line = ProgressLine("verify", kGiB, 2 * kGiB, std::chrono::seconds(2));
  EXPECT_EQ(line, "verify  [############------------]  50 %  1.0 GiB of 2.0 GiB  512.0 MiB/s");
  EXPECT_THAT(ProgressLine("verify", 0, 0, Nanos(0)), HasSubstr("0 %"));
}

}  // namespace
}  // namespace ckptd
