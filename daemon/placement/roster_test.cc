#include "daemon/placement/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd::placement {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::vector<Member>& members) {
  auto roster = Roster::Make(members);
  EXPECT_EQ(CodeOf(roster.status()), ErrorCode::INVALID_ARGUMENT);
  return std::string(roster.status().message());
}

TEST(Roster, TheLivingByName) {
  auto roster = Roster::Make({{"c"}, {"a"}, {"b", "", "", "", false}});
  ASSERT_TRUE(roster.ok()) << roster.status();
  ASSERT_EQ(roster->size(), 2u);
  EXPECT_EQ(roster->name(0), "a");
  EXPECT_EQ(roster->Find("c"), 1u);
  EXPECT_EQ(roster->Find("b"), std::nullopt);
  EXPECT_EQ(roster->Find("d"), std::nullopt);
}

TEST(Roster, ARackIsOneOfItsZone) {
  auto roster =
      Roster::Make({{"a", "east", "7", ""}, {"b", "west", "7", ""}, {"c", "east", "7", "h"}, {"d", "", "7", "h"}});
  ASSERT_TRUE(roster.ok()) << roster.status();
  EXPECT_EQ(roster->Domain(Level::kRack, 0), roster->Domain(Level::kRack, 2));
  EXPECT_NE(roster->Domain(Level::kRack, 0), roster->Domain(Level::kRack, 1));
  EXPECT_NE(roster->Domain(Level::kRack, 0), roster->Domain(Level::kRack, 3));
  EXPECT_EQ(roster->Domain(Level::kZone, 3), 0u) << "not declared";
  EXPECT_EQ(roster->DomainName(Level::kRack, 0), "east/7");
  EXPECT_EQ(roster->DomainName(Level::kHost, 3), "7/h");
}

TEST(Roster, NarrowDomainsWeighMore) {
  auto roster =
      Roster::Make({{"a", "z", "1", "x"}, {"b", "z", "1", "x"}, {"c", "z", "1", "y"}, {"d", "z", "", ""}, {"e"}});
  ASSERT_TRUE(roster.ok()) << roster.status();
  EXPECT_GT(roster->SharedCost(0, 1), 30'000 * roster->SharedCost(0, 2)) << "a host, against as many racks";
  EXPECT_GT(roster->SharedCost(0, 2), 30'000 * roster->SharedCost(0, 3)) << "a rack, against as many zones";
  EXPECT_GT(roster->SharedCost(0, 3), 0u);
  EXPECT_EQ(roster->SharedCost(0, 4), 0u);
  EXPECT_EQ(roster->SharedCost(3, 4), 0u) << "what is not declared is shared with nobody";
}

TEST(Roster, MistakesAreNamed) {
  EXPECT_THAT(ErrorOf({{"a"}, {"b"}, {"a"}}), HasSubstr("member a is listed twice"));
  EXPECT_THAT(ErrorOf({{"a"}, {"a", "", "", "", false}}), HasSubstr("twice")) << "one of them is dead";
  EXPECT_THAT(ErrorOf({{""}}), HasSubstr("no name"));
  EXPECT_THAT(ErrorOf({{"a", std::string(256, 'z')}}), HasSubstr("member a: a name or label of 256 bytes"));
  EXPECT_THAT(ErrorOf(std::vector<Member>(kMaxMembers + 1)), HasSubstr("10001 members; a placement has at most 10000"));
}

}  // namespace
}  // namespace ckptd::placement
