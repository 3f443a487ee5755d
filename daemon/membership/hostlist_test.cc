#include "daemon/membership/hostlist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/membership/member.h"

namespace ckptd::membership {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(absl::string_view text) {
  auto names = ExpandHostlist(text, kMaxMembers);
  EXPECT_TRUE(names.ok()) << text << ": " << names.status();
  return names.ok() ? *names : std::vector<std::string>();
}

std::string ErrorOfHosts(absl::string_view text, size_t max = kMaxMembers) {
  auto names = ExpandHostlist(text, max);
  EXPECT_EQ(CodeOf(names.status()), ErrorCode::INVALID_ARGUMENT) << Shown(text);
  return std::string(names.status().message());
}

// What scontrol show hostnames prints for the same.
TEST(Hostlist, ExpandsAsSlurmDoes) {
  EXPECT_THAT(Names("x"), ElementsAre("x"));
  EXPECT_THAT(Names("n[001-003,7]a[1-2],x"),
              ElementsAre("n001a1", "n001a2", "n002a1", "n002a2", "n003a1", "n003a2", "n7a1", "n7a2", "x"));
  EXPECT_THAT(Names("rack[1-2]n[01-02]"), ElementsAre("rack1n01", "rack1n02", "rack2n01", "rack2n02"));
  EXPECT_THAT(Names("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(Names("n[098-101].local"), ElementsAre("n098.local", "n099.local", "n100.local", "n101.local"));
  EXPECT_THAT(Names("[1-2]"), ElementsAre("1", "2"));
  EXPECT_THAT(Names("n[1][2]"), ElementsAre("n12"));
  EXPECT_THAT(Names("a,a"), ElementsAre("a", "a"));
  EXPECT_THAT(Names("n[000000001]"), ElementsAre("n000000001"));
}

TEST(Hostlist, WhatDoesNotParseIsSaidWithTheItem) {
  for (const char* text : {"",         ",",      "a,",    ",a",    "a,,b",          "n[",
                           "n]",       "n[]",    "n[1",   "n1]",   "n[1-]",         "n[-1]",
                           "n[1-2-3]", "n[2-1]", "n[a]",  "n[1,]", "n[,1]",         "n[[1]]",
                           "n[1-2",    "n[0x1]", "n[1 ]", "n[+1]", "n[1234567890]", "n[1-4294967296]"})
    EXPECT_THAT(ErrorOfHosts(text), HasSubstr("hostlist \"")) << text;
  EXPECT_THAT(ErrorOfHosts("good[1-3],n[3-1]"), HasSubstr("hostlist \"n[3-1]\": range 3-1 goes down"));
}

TEST(Hostlist, LimitsHoldBeforeAnythingIsMade) {
  EXPECT_EQ(Names("n[1-10000]").size(), kMaxMembers);
  EXPECT_THAT(ErrorOfHosts("n[0-10000]"), HasSubstr("stands for more than 10000 names"));
  EXPECT_THAT(ErrorOfHosts("n[1-10000],x"), HasSubstr("stands for more than 10000 names"));
  EXPECT_THAT(ErrorOfHosts("n[1-100]m[1-101]"), HasSubstr("stands for more than 10000 names"));
  EXPECT_THAT(ErrorOfHosts("n[0-999999999]"), HasSubstr("more than 10000"));
  std::string product;
  for (int i = 0; i < 60; ++i) product += "[0-9]";
  EXPECT_THAT(ErrorOfHosts(product), HasSubstr("more than 10000"));
  EXPECT_THAT(ErrorOfHosts(product + product), HasSubstr("more than 64 parts"));
  EXPECT_THAT(ErrorOfHosts(std::string(kMaxNameBytes + 1, 'n')), HasSubstr("a name of 254 bytes; at most 253"));
  EXPECT_EQ(Names(std::string(kMaxNameBytes, 'n')).size(), 1U);
  EXPECT_THAT(ErrorOfHosts(std::string(kMaxHostlistBytes + 1, 'n')), HasSubstr("bytes; at most"));
  EXPECT_THAT(ErrorOfHosts("a,b", 1), HasSubstr("more than 1 names"));
}

// Text made of the grammar's own characters: it is refused with a sentence or keeps the limits.
TEST(Hostlist, RandomTextKeepsTheLimits) {
  std::mt19937 random(11);
  const std::string alphabet = "n0123456789[]-,,[]x";
  int accepted = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint32_t length = 1 + random() % 24; length > 0; --length) text += alphabet[random() % alphabet.size()];
    auto names = ExpandHostlist(text, 50);
    if (!names.ok()) continue;
    ++accepted;
    ASSERT_GE(names->size(), 1U) << text;
    ASSERT_LE(names->size(), 50U) << text;
    for (const std::string& name : *names) {
      ASSERT_FALSE(name.empty()) << text;
      ASSERT_EQ(name.find_first_of("[],"), std::string::npos) << text;
    }
  }
  EXPECT_GT(accepted, 500) << "else this shows nothing";
}

}  // namespace
}  // namespace ckptd::membership
