#include "tools/ckptctl/args.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<Flag> kFlags = {
    {"--to", "DIR", ""}, {"--rank", "R", ""}, {"-w", "", ""}, {"-o", "FORMAT", ""}, {"--timeout", "TIME", ""}};

absl::StatusOr<Args> Parse(const std::vector<std::string>& words) { return Args::Parse(kFlags, words); }

TEST(Args, FlagsAndWordsInAnyOrder) {
  auto args = Parse({"-w", "gpt@5", "--to", "/x", "--rank=3"});
  ASSERT_TRUE(args.ok()) << args.status();
  EXPECT_TRUE(args->Has("-w"));
  EXPECT_EQ(args->Get("--to"), "/x");
  EXPECT_EQ(args->GetRank("--rank")->value(), 3);
  EXPECT_THAT(args->words(), ElementsAre("gpt@5"));
  EXPECT_EQ(args->word(1), "");
}

TEST(Args, BehindTwoDashesNothingIsAFlag) {
  auto args = Parse({"--", "-w"});
  ASSERT_TRUE(args.ok());
  EXPECT_FALSE(args->Has("-w"));
  EXPECT_THAT(args->words(), ElementsAre("-w"));
}

TEST(Args, MistakesAreUsage) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--two", "/x"}, {"--to"}, {"-w=1"}, {"--to", "a", "--to", "b"}}) {
    EXPECT_EQ(CodeOf(Parse(words).status()), ErrorCode::INVALID_ARGUMENT) << words[0];
  }
  EXPECT_THAT(std::string(Parse({"--tp"}).status().message()), HasSubstr("did you mean --to?"));
  EXPECT_EQ(CodeOf(Parse({"--rank", "x"})->GetRank("--rank").status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(Parse({"-o", "yaml"})->Json().status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_EQ(CodeOf(Parse({"--timeout", "soon"})->GetDuration("--timeout", {}).status()), ErrorCode::INVALID_ARGUMENT);
}

TEST(Args, NumbersAndBytesHaveBounds) {
  auto number = [](const char* text) { return Parse({"--rank", text})->GetNumber("--rank", 1, 16); };
  EXPECT_EQ(number("1")->value(), 1u);
  EXPECT_EQ(number("16")->value(), 16u);
  EXPECT_FALSE(Parse({})->GetNumber("--rank", 1, 16)->has_value());
  for (const char* bad : {"0", "17", "-1", "1.5", "x", "", "99999999999999999999"}) {
    EXPECT_EQ(CodeOf(number(bad).status()), ErrorCode::INVALID_ARGUMENT) << bad;
  }
  EXPECT_EQ(number("17").status().message(), "--rank wants a number from 1 to 16, not 17");
  auto bytes = [](const char* text) { return Parse({"--to", text})->GetBytes("--to", 1, 1 << 20); };
  EXPECT_EQ(bytes("64KiB")->value(), 65536u);
  EXPECT_FALSE(Parse({})->GetBytes("--to", 1, 2)->has_value());
  for (const char* bad : {"0", "2MiB", "64 GB", "-1", "much"}) {
    EXPECT_EQ(CodeOf(bytes(bad).status()), ErrorCode::INVALID_ARGUMENT) << bad;
  }
  EXPECT_EQ(bytes("2MiB").status().message(), "--to wants 1 B to 1.0 MiB, not 2MiB");
}

TEST(Args, ValuesHaveDefaults) {
  auto args = Parse({});
  EXPECT_FALSE(*args->Json());
  EXPECT_FALSE(args->GetRank("--rank")->has_value());
  EXPECT_EQ(*args->GetDuration("--timeout", std::chrono::seconds(7)), std::chrono::seconds(7));
  EXPECT_EQ(*Parse({"--timeout", "2m"})->GetDuration("--timeout", {}), std::chrono::minutes(2));
  EXPECT_TRUE(*Parse({"-o", "json"})->Json());
}

TEST(Target, JobStepAndAttempt) {
  auto job = ParseTarget("gpt");
  ASSERT_TRUE(job.ok());
  EXPECT_EQ(job->job(), "gpt");
  EXPECT_FALSE(job->has_step());
  auto step = ParseTarget("gpt.a1@100");
  ASSERT_TRUE(step.ok());
  EXPECT_EQ(step->job(), "gpt.a1");
  EXPECT_EQ(step->step(), 100);
  EXPECT_FALSE(step->has_attempt());
  auto attempt = ParseTarget("gpt@100.a3");
  ASSERT_TRUE(attempt.ok()) << attempt.status();
  EXPECT_EQ(attempt->step(), 100);
  EXPECT_EQ(attempt->attempt(), 3);
  for (const char* bad : {"", "-x", "gpt@", "gpt@x", "gpt@1.a", "gpt@1.a0", "gpt@-1", "a/b"}) {
    EXPECT_EQ(CodeOf(ParseTarget(bad).status()), ErrorCode::INVALID_ARGUMENT) << bad;
  }
}

TEST(Target, WhatIsAPath) {
  EXPECT_TRUE(IsPath("/a"));
  EXPECT_TRUE(IsPath("./gpt"));
  EXPECT_TRUE(IsPath("."));
  EXPECT_TRUE(IsPath("rank-00000-of-00001.safetensors"));
  EXPECT_FALSE(IsPath("gpt"));
  EXPECT_FALSE(IsPath("gpt@100"));
}

TEST(Nearest, OnlyWhatIsLikeIt) {
  EXPECT_EQ(Nearest("statsu", {"list", "status"}), "status");
  EXPECT_EQ(Nearest("lst", {"list", "status"}), "list");
  EXPECT_EQ(Nearest("frobnicate", {"list", "status"}), std::nullopt);
}

}  // namespace
}  // namespace ckptd
