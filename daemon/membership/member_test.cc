#include "daemon/membership/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::membership {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(Address, HostAndPort) {
  for (const char* text : {"node-1.rack.x:9465", "10.0.0.1:1", "[::1]:65535", "[fe80::1%eth0]:80"}) {
    auto parsed = ParseAddress(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(JoinAddress(parsed->host, parsed->port), text);
  }
}

TEST(Address, NothingElse) {
  const std::string longest(kMaxNameBytes, 'a');
  EXPECT_TRUE(ParseAddress(longest + ":80").ok());
  std::vector<std::string> wrong = {"",        "host",   "host:", ":80",   "host:0", "host:65536",    "host:+80",
                                    "host:8 ", "::1:80", "[]:80", "[::1]", "a b:80", longest + "a:80"};
  wrong.emplace_back("a\0b:80", 6);
  wrong.push_back(absl::StrCat(std::string(1 << 20, 'a'), ":80"));
  for (const std::string& text : wrong)
    EXPECT_EQ(CodeOf(ParseAddress(text).status()), ErrorCode::INVALID_ARGUMENT) << text.substr(0, 40);
}

TEST(LabelsText, Pairs) {
  auto labels = ParseLabels(" rack=r3  zone=eu/b ");
  ASSERT_TRUE(labels.ok()) << labels.status();
  EXPECT_THAT(*labels, UnorderedElementsAre(Pair("rack", "r3"), Pair("zone", "eu/b")));
  EXPECT_TRUE(ParseLabels("")->empty());
  EXPECT_THAT(ParseLabels("rack").status().message(), HasSubstr("KEY=VALUE"));
  EXPECT_THAT(ParseLabels("rack=1 rack=2").status().message(), HasSubstr("rack is given twice"));
  for (const char* wrong : {"=x", "x=", "x=a=b", "x=\x01"}) EXPECT_FALSE(ParseLabels(wrong).ok()) << wrong;
}

TEST(LabelsText, LimitsHold) {
  std::string most;
  for (size_t i = 0; i < kMaxLabels; ++i) absl::StrAppend(&most, " k", i, "=", std::string(kMaxLabelBytes, 'v'));
  EXPECT_TRUE(ParseLabels(most).ok());
  EXPECT_FALSE(ParseLabels(most + " one=more").ok());
  EXPECT_FALSE(ParseLabels("k=" + std::string(kMaxLabelBytes + 1, 'v')).ok());
}

TEST(CheckMember, NamesWhoAndWhat) {
  Member member{"n1", "n1:80", {{"rack", "r1"}}, 3};
  EXPECT_TRUE(CheckMember(member).ok());
  member.address = "n1";
  EXPECT_THAT(CheckMember(member).message(), HasSubstr("node n1: address \"n1\""));
  member.address = "n1:80";
  for (size_t i = 0; i < kMaxLabels; ++i) member.domains[absl::StrCat("k", i)] = "v";
  EXPECT_THAT(CheckMember(member).message(), HasSubstr("node n1: 9 labels; at most 8"));
  for (const std::string& name : {std::string(), std::string(kMaxNameBytes + 1, 'n'), std::string("../x"),
                                  std::string("-x"), std::string("a b"), std::string("a/b"), std::string("a\nb")})
    EXPECT_FALSE(CheckName(name).ok()) << name;
  EXPECT_TRUE(CheckName(std::string(kMaxNameBytes, 'n')).ok());
}

}  // namespace
}  // namespace ckptd::membership
