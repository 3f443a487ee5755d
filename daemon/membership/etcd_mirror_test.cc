#include "daemon/membership/etcd_mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::membership {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

EtcdEntry Entry(const std::string& name, int64_t revision) {
  return {"/p/" + name, EncodeMember({name, name + ":80", {{"rack", "r1"}}, 0}), revision, 5};
}

EtcdNews Put(const std::string& name, int64_t revision, int64_t newest = 0) {
  return {{1, newest == 0 ? revision : newest}, {{false, Entry(name, revision)}}, false};
}

EtcdNews Gone(const std::string& name, int64_t revision) {
  return {{1, revision}, {{true, {"/p/" + name, "", revision, 0}}}, false};
}

std::vector<std::string> NamesOf(const EtcdMirror& mirror) {
  std::vector<std::string> names;
  for (const Member& member : mirror.Members()) names.push_back(absl::StrCat(member.name, "/", member.generation));
  return names;
}

class EtcdMirrorTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(mirror_.Reset({{1, 10}, {Entry("a", 4), Entry("b", 9)}}).ok()); }
  EtcdMirror mirror_{"/p/"};
};

TEST_F(EtcdMirrorTest, ListsThenFollows) {
  EXPECT_THAT(NamesOf(mirror_), ElementsAre("a/4", "b/9"));
  EXPECT_EQ(mirror_.Members()[0], (Member{"a", "a:80", {{"rack", "r1"}}, 4}));
  ASSERT_TRUE(mirror_.Apply(Put("c", 11)).ok());
  ASSERT_TRUE(mirror_.Apply(Gone("a", 12)).ok());
  ASSERT_TRUE(mirror_.Apply(Put("b", 13)).ok());
  EXPECT_THAT(NamesOf(mirror_), ElementsAre("b/13", "c/11"));
  EXPECT_EQ(mirror_.revision(), 13);
  EXPECT_EQ(mirror_.Find("c")->revision, 11);
  EXPECT_FALSE(mirror_.Find("a").has_value());
}

// etcd sends what a watch missed in batches, each with the store's newest revision in its header.
TEST_F(EtcdMirrorTest, ABatchDoesNotSkipTheNext) {
  ASSERT_TRUE(mirror_.Apply({{1, 500}, {}, false}).ok()) << "the watch begins";
  ASSERT_TRUE(mirror_.Apply(Put("c", 11, 500)).ok());
  EXPECT_EQ(mirror_.revision(), 11);
  ASSERT_TRUE(mirror_.Apply(Put("d", 499, 500)).ok());
  EXPECT_THAT(NamesOf(mirror_), ElementsAre("a/4", "b/9", "c/11", "d/499"));
  ASSERT_TRUE(mirror_.Apply({{1, 800}, {}, true}).ok());
  EXPECT_EQ(mirror_.revision(), 800);
}

TEST_F(EtcdMirrorTest, WhatIsRepeatedChangesNothing) {
  ASSERT_TRUE(mirror_.Apply(Gone("a", 11)).ok());
  ASSERT_TRUE(mirror_.Apply(Put("a", 4, 11)).ok());
  EXPECT_THAT(NamesOf(mirror_), ElementsAre("b/9"));
}

TEST_F(EtcdMirrorTest, ChangesOfOneTransactionCountTogether) {
  EtcdNews both{{1, 11}, {{true, {"/p/a", "", 11, 0}}, {false, Entry("c", 11)}}, false};
  ASSERT_TRUE(mirror_.Apply(both).ok());
  EXPECT_THAT(NamesOf(mirror_), ElementsAre("b/9", "c/11"));
}

TEST_F(EtcdMirrorTest, AnotherClusterAndThePastAreRefused) {
  EXPECT_THAT(mirror_.Check({2, 50}).message(), HasSubstr("this is cluster 2"));
  EXPECT_THAT(mirror_.Check({1, 9}).message(), HasSubstr("went back from revision 10 to 9"));
  EXPECT_EQ(CodeOf(mirror_.Reset({{2, 50}, {}})), ErrorCode::REFUSED);
  EXPECT_EQ(CodeOf(mirror_.Apply({{2, 50}, {{true, {"/p/a", "", 50, 0}}}, false})), ErrorCode::REFUSED);
  EXPECT_THAT(NamesOf(mirror_), ElementsAre("a/4", "b/9"));
  EXPECT_TRUE(mirror_.Reset({{1, 10}, {}}).ok()) << "the same moment, and all have left";
  EXPECT_THAT(NamesOf(mirror_), ElementsAre());
}

TEST_F(EtcdMirrorTest, ForeignKeysAreNotMembers) {
  ASSERT_TRUE(mirror_.Apply({{1, 11}, {{false, {"/q/x", "", 11, 0}}}, false}).ok());
  EXPECT_THAT(NamesOf(mirror_), ElementsAre("a/4", "b/9"));
}

TEST_F(EtcdMirrorTest, AValueThatIsNoRecordIsAMemberThatNoViewTakes) {
  for (const std::string& value : {std::string("{"), std::string("[]"), std::string("\xff"), std::string(1 << 20, '['),
                                   std::string("{\"address\": 7}"), std::string(1 << 20, 'x')}) {
    const Member member = DecodeMember("x", {"/p/x", value, 11, 0});
    EXPECT_EQ(member.address, "") << value.substr(0, 20);
    EXPECT_FALSE(CheckMember(member).ok());
  }
  EXPECT_EQ(DecodeMember("x", {"/p/x", R"({"address":"h:1","newer":[1]})", 11, 0}).address, "h:1");
}

TEST_F(EtcdMirrorTest, MoreThanTheLimitIsAnError) {
  EtcdNews many{{1, 20'000}, {}, false};
  for (size_t i = 0; i <= kMaxMembers; ++i)
    many.changes.push_back({false, Entry(absl::StrCat("n", i), static_cast<int64_t>(11 + i))});
  EXPECT_THAT(mirror_.Apply(many).message(), HasSubstr("more than 10000 members under /p/"));
}

}  // namespace
}  // namespace ckptd::membership
