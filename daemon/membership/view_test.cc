#include "daemon/membership/view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::membership {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Member At(const std::string& name, uint64_t generation = 0, const std::string& address = "") {
  return {name, address.empty() ? name + ":80" : address, {}, generation};
}

std::vector<std::string> NamesOf(const View& view) {
  std::vector<std::string> names;
  for (const Member& member : view.members) names.push_back(absl::StrCat(member.name, "/", member.generation));
  return names;
}

TEST(ViewState, BeginsWithNobodyAndNumberZero) {
  ViewState state;
  EXPECT_EQ(state.view()->number, 0U);
  EXPECT_THAT(state.view()->members, IsEmpty());
  EXPECT_EQ(CodeOf(state.Admit("a", 1)), ErrorCode::NOT_FOUND);
}

TEST(ViewState, TheNumberGrowsWithTheMembersOnly) {
  ViewState state;
  EXPECT_TRUE(state.Said({At("b"), At("a")}, seconds(1)));
  EXPECT_EQ(state.view()->number, 1U);
  EXPECT_THAT(NamesOf(*state.view()), ElementsAre("a/0", "b/0"));
  EXPECT_FALSE(state.Said({At("a"), At("b"), At("b")}, seconds(2))) << "the same, one twice";
  EXPECT_TRUE(state.Said({At("a")}, seconds(3)));
  EXPECT_EQ(state.view()->number, 2U);
  EXPECT_TRUE(state.Said({}, seconds(4))) << "what a source says is believed, also that there is nobody";
  EXPECT_EQ(state.view()->number, 3U);
}

TEST(ViewState, WhatAMemberSaysOfItselfCountsWhereTheSourceSaysNothing) {
  ViewState state;
  Member listed = At("b");
  listed.domains = {{"rack", "r1"}};
  ASSERT_TRUE(state.Said({At("a"), listed}, seconds(1)));
  EXPECT_FALSE(state.Learn({{"c", {{"rack", "r9"}}}})) << "no member";
  EXPECT_FALSE(state.Learn({{"b", {{"rack", "r9"}}}})) << "the source knows better";
  EXPECT_FALSE(state.Learn({{"a", {{"rack", "r 9"}}}})) << "no label";
  EXPECT_FALSE(state.Learn({{"a", {}}}));
  EXPECT_EQ(state.view()->number, 1U);
  EXPECT_TRUE(state.Learn({{"a", {{"rack", "r2"}}}}));
  EXPECT_FALSE(state.Learn({{"a", {{"rack", "r2"}}}}));
  EXPECT_EQ(state.view()->number, 2U);
  EXPECT_EQ(state.view()->Find("a")->domains, (Labels{{"rack", "r2"}}));
  EXPECT_EQ(state.view()->Find("b")->domains, (Labels{{"rack", "r1"}}));
  EXPECT_FALSE(state.Said({At("a"), listed}, seconds(2))) << "the source says the same again";
  EXPECT_TRUE(state.Learn({{"a", {{"rack", "r3"}}}})) << "it was restarted with another one";
  EXPECT_EQ(state.view()->Find("a")->domains, (Labels{{"rack", "r3"}}));
  ASSERT_TRUE(state.Said({listed}, seconds(3)));
  ASSERT_TRUE(state.Said({At("a"), listed}, seconds(4)));
  EXPECT_TRUE(state.view()->Find("a")->domains.empty()) << "it says them anew";
}

TEST(ViewState, WhatManyMembersSayAtOnceIsOneView) {
  ViewState state;
  ASSERT_TRUE(state.Said({At("a"), At("b"), At("c")}, seconds(1)));
  EXPECT_TRUE(state.Learn({{"a", {{"rack", "r1"}}}, {"b", {{"rack", "r 2"}}}, {"c", {{"rack", "r3"}}}}));
  EXPECT_EQ(state.view()->number, 2U);
  EXPECT_EQ(state.view()->Find("a")->domains, (Labels{{"rack", "r1"}}));
  EXPECT_TRUE(state.view()->Find("b")->domains.empty()) << "no label";
  EXPECT_EQ(state.view()->Find("c")->domains, (Labels{{"rack", "r3"}}));
}

// Links are judged anew with it.
TEST(ViewState, NodesAreOthersWithNameAddressOrGeneration) {
  ViewState state;
  ASSERT_TRUE(state.Said({At("a"), At("b", 1)}, seconds(1)));
  const uint64_t first = state.view()->nodes;
  ASSERT_TRUE(state.Learn({{"a", {{"rack", "r1"}}}}));
  Member moved = At("b", 1);
  moved.domains = {{"rack", "r1"}};
  ASSERT_TRUE(state.Said({At("a"), moved}, seconds(2)));
  ASSERT_TRUE(state.Failed(Error(ErrorCode::STORAGE_IO, "etcd does not answer"), seconds(3)));
  EXPECT_EQ(state.view()->nodes, first);
  ASSERT_TRUE(state.Said({At("a"), At("b", 2)}, seconds(4)));
  EXPECT_EQ(state.view()->nodes, first + 1);
  ASSERT_TRUE(state.Said({At("a"), At("b", 2, "b:81")}, seconds(5)));
  EXPECT_EQ(state.view()->nodes, first + 2);
  ASSERT_TRUE(state.Said({At("a")}, seconds(6)));
  EXPECT_EQ(state.view()->nodes, first + 3);
}

TEST(ViewState, ASourceThatFailsKeepsTheViewAndSaysSinceWhen) {
  ViewState state;
  const absl::Status down = Error(ErrorCode::STORAGE_IO, "etcd does not answer");
  ASSERT_TRUE(state.Said({At("a")}, seconds(1)));
  EXPECT_TRUE(state.Failed(down, seconds(5)));
  EXPECT_FALSE(state.Failed(down, seconds(6)));
  EXPECT_TRUE(state.Failed(Error(ErrorCode::STORAGE_IO, "something else"), seconds(7)));
  EXPECT_THAT(NamesOf(*state.view()), ElementsAre("a/0"));
  EXPECT_EQ(state.view()->number, 1U);
  EXPECT_EQ(state.view()->source.message(), "something else");
  EXPECT_EQ(state.view()->source_since, seconds(5)) << "the first failure counts";
  EXPECT_TRUE(state.Said({At("a")}, seconds(9)));
  EXPECT_TRUE(state.view()->source.ok());
  EXPECT_EQ(state.view()->source_since, seconds(9));
  EXPECT_EQ(state.view()->number, 1U);
}

TEST(ViewState, AFirstFailureLeavesNumberZero) {
  ViewState state;
  EXPECT_TRUE(state.Failed(Error(ErrorCode::STORAGE_IO, "x"), seconds(1)));
  EXPECT_EQ(state.view()->number, 0U);
  EXPECT_TRUE(state.Said({}, seconds(2)));
  EXPECT_EQ(state.view()->number, 1U);
}

TEST(ViewState, OfOneNameTheHighestGenerationIsTakenAndTheOtherNamed) {
  ViewState state;
  ASSERT_TRUE(state.Said({At("a", 3, "x:1"), At("a", 7, "y:1")}, seconds(1)));
  EXPECT_THAT(NamesOf(*state.view()), ElementsAre("a/7"));
  ASSERT_EQ(state.view()->refused.size(), 1U);
  EXPECT_THAT(state.view()->refused[0].message(),
              HasSubstr("node a is there twice: at y:1 (generation 7, taken) and at x:1 (generation 3, refused)"));
}

TEST(ViewState, OneAddressHasOneMember) {
  ViewState state;
  ASSERT_TRUE(state.Said({At("b", 0, "x:1"), At("a", 0, "x:1"), At("c", 4, "z:1"), At("d", 9, "z:1")}, seconds(1)));
  EXPECT_THAT(NamesOf(*state.view()), ElementsAre("a/0", "d/9"));
  ASSERT_EQ(state.view()->refusals, 2U);
  EXPECT_THAT(state.view()->refused[1].message(), HasSubstr("nodes a (taken) and b (refused) have one address, x:1"));
}

TEST(ViewState, AGenerationThatGoesBackChangesNothing) {
  ViewState state;
  ASSERT_TRUE(state.Said({At("a", 7, "new:1"), At("b", 2)}, seconds(1)));
  EXPECT_TRUE(state.Said({At("a", 3, "old:1"), At("b", 2)}, seconds(2)));
  EXPECT_EQ(state.view()->Find("a")->address, "new:1");
  EXPECT_EQ(state.view()->number, 1U);
  ASSERT_EQ(state.view()->refused.size(), 1U);
  EXPECT_EQ(CodeOf(state.view()->refused[0]), ErrorCode::FENCED);
  EXPECT_TRUE(state.Admit("a", 7).ok());
}

TEST(ViewState, WhoLeftIsRefusedUntilItRegistersAgain) {
  ViewState state;
  ASSERT_TRUE(state.Said({At("a", 5), At("b", 6)}, seconds(1)));
  EXPECT_TRUE(state.Admit("a", 5).ok());
  ASSERT_TRUE(state.Said({At("b", 6)}, seconds(2)));
  EXPECT_EQ(CodeOf(state.Admit("a", 5)), ErrorCode::FENCED);
  ASSERT_TRUE(state.Said({At("a", 5), At("b", 6)}, seconds(3)));
  EXPECT_EQ(state.view()->Find("a"), nullptr) << "the source itself says what is over";
  ASSERT_TRUE(state.Said({At("a", 8), At("b", 6)}, seconds(4)));
  EXPECT_TRUE(state.Admit("a", 8).ok());
  EXPECT_EQ(CodeOf(state.Admit("a", 5)), ErrorCode::FENCED);
}

TEST(ViewState, WhatBreaksALimitIsLeftOutAndTheRestStands) {
  ViewState state;
  Member wild = At("wild");
  wild.domains["rack"] = std::string(100, 'r');
  ASSERT_TRUE(state.Said({At("a"), wild, At("../b"), At("c", 0, "nowhere")}, seconds(1)));
  EXPECT_THAT(NamesOf(*state.view()), ElementsAre("a/0"));
  EXPECT_EQ(state.view()->refusals, 3U);
}

std::vector<Member> Many(size_t count) {
  std::vector<Member> members;
  for (size_t i = 0; i < count; ++i) members.push_back(At(absl::StrCat("n", i)));
  return members;
}

TEST(ViewState, TooManyMembersAreOneRefusedReport) {
  ViewState state;
  ASSERT_TRUE(state.Said(Many(kMaxMembers), seconds(1)));
  EXPECT_EQ(state.view()->members.size(), kMaxMembers);
  EXPECT_TRUE(state.Said(Many(kMaxMembers + 1), seconds(2)));
  EXPECT_EQ(state.view()->members.size(), kMaxMembers);
  EXPECT_THAT(state.view()->source.message(), HasSubstr("names 10001 members; at most 10000"));
}

TEST(ViewState, RefusalsAreCountedBeyondWhatIsRepeated) {
  ViewState state;
  std::vector<Member> members;
  members.reserve(100);
  for (int i = 0; i < 100; ++i) members.push_back(At(absl::StrCat("n", i), 0, "same:1"));
  ASSERT_TRUE(state.Said(members, seconds(1)));
  EXPECT_EQ(state.view()->refused.size(), kMaxRefusals);
  EXPECT_EQ(state.view()->refusals, 99U);
}

// Whatever a source says, in whatever order: names and addresses are unique, the number grows with the members only, a
// generation of a name never goes back, and what was over is never admitted again.
TEST(ViewState, RandomReportsKeepTheInvariants) {
  std::mt19937 random(7);
  auto pick = [&random](uint32_t below) { return static_cast<uint32_t>(random() % below); };
  for (int round = 0; round < 300; ++round) {
    ViewState state;
    std::map<std::string, uint64_t> highest;
    std::map<std::string, uint64_t> over;
    for (int report = 0; report < 40; ++report) {
      std::vector<Member> said;
      for (uint32_t i = pick(6); i > 0; --i)
        said.push_back(At(absl::StrCat("n", pick(4)), 1 + pick(30), absl::StrCat("h", pick(4), ":1")));
      std::vector<Member> shuffled = said;
      std::shuffle(shuffled.begin(), shuffled.end(), random);
      ViewState twin = state;
      const std::shared_ptr<const View> before = state.view();
      (void)state.Said(said, seconds(report));
      (void)twin.Said(shuffled, seconds(report));
      const View& now = *state.view();
      ASSERT_EQ(now.members, twin.view()->members) << "order matters";
      ASSERT_EQ(now.number, before->number + (now.members == before->members && before->number > 0 ? 0 : 1));
      std::set<std::string> addresses;
      for (const Member& member : now.members) {
        ASSERT_TRUE(addresses.insert(member.address).second);
        ASSERT_GE(member.generation, highest[member.name]);
        ASSERT_GT(member.generation, over[member.name]);
        highest[member.name] = member.generation;
      }
      for (const Member& member : before->members)
        if (now.Find(member.name) == nullptr) over[member.name] = member.generation;
      for (const auto& [name, generation] : over) {
        if (generation == 0) continue;
        ASSERT_EQ(CodeOf(state.Admit(name, generation)), ErrorCode::FENCED);
      }
    }
  }
}

}  // namespace
}  // namespace ckptd::membership
