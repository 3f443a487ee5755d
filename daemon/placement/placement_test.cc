#include "daemon/placement/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "daemon/base/errors.h"
#include "daemon/placement/placement_test_util.h"

namespace ckptd::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST(Place, Algorithm1) {
  EXPECT_THAT(Sizes(MustPlace(Mixed(2), 16)), ElementsAre(2, 2, 2, 2, 2, 2, 2, 2));
  EXPECT_THAT(Sizes(MustPlace(Mixed(2), 7)), ElementsAre(2, 2, 3));
  EXPECT_THAT(Sizes(MustPlace(Mixed(4), 15)), ElementsAre(4, 4, 7));
  EXPECT_THAT(Sizes(MustPlace(Mixed(3), 5)), ElementsAre(5));
  EXPECT_EQ(MustPlace(Mixed(2), 16).groups, MustPlace(Scheme::Copies(Kind::kGroup, 2), 16).groups);
  EXPECT_THAT(Sizes(MustPlace(Scheme::Copies(Kind::kRing, 2), 16)), ElementsAre(16));
}

TEST(Place, ParityGroupsDifferByOneAtMost) {
  EXPECT_THAT(Sizes(MustPlace(Scheme::Xor(7), 16)), ElementsAre(8, 8));
  EXPECT_THAT(Sizes(MustPlace(Scheme::ReedSolomon(6, 2), 23)), ElementsAre(12, 11));
  EXPECT_THAT(Sizes(MustPlace(Scheme::ReedSolomon(6, 2), 15)), ElementsAre(15));
  EXPECT_THAT(Sizes(MustPlace({}, 3)), ElementsAre(1, 1, 1));
}

TEST(Place, ErrorsAreThoseOfMembersAndScheme) {
  EXPECT_THAT(std::string(Place(Mixed(3), Nodes(2)).status().message()), HasSubstr("needs at least 3 nodes"));
  std::vector<Member> members = Nodes(4);
  members[0].alive = members[1].alive = false;
  EXPECT_THAT(std::string(Place(Mixed(3), members).status().message()), HasSubstr("there are 2"));
  members[0].name = members[1].name;
  EXPECT_THAT(std::string(Place(Mixed(2), members).status().message()), HasSubstr("twice"));
}

TEST(HolderSets, AsManyAsTheTheoremCounts) {
  EXPECT_EQ(HolderSets(MustPlace(Scheme::Copies(Kind::kGroup, 2), 16)).size(), 8u);  // N/m
  EXPECT_EQ(HolderSets(MustPlace(Scheme::Copies(Kind::kRing, 2), 16)).size(), 16u);  // N
  EXPECT_EQ(HolderSets(MustPlace(Mixed(4), 15)).size(), 2u + 7);                     // (g-1) + (m + N mod m)
  EXPECT_EQ(HolderSets(MustPlace(Scheme::ReedSolomon(6, 2), 16)).size(), 2u);
}

TEST(Duties, OfAMemberOfARing) {
  const Placement ring{Scheme::Copies(Kind::kMixed, 3), {{"x", "y", "z"}, {"a", "b", "c", "d"}}};
  auto duties = DutiesOf(ring, "c");
  ASSERT_TRUE(duties.ok()) << duties.status();
  EXPECT_EQ(duties->group, 1u);
  EXPECT_EQ(duties->position, 2u);
  EXPECT_THAT(duties->sends, ElementsAre("d", "a"));
  EXPECT_THAT(duties->stores, ElementsAre("b", "a"));
  EXPECT_THAT(HolderSets(ring),
              UnorderedElementsAre(ElementsAre("x", "y", "z"), ElementsAre("a", "b", "c"), ElementsAre("b", "c", "d"),
                                   ElementsAre("c", "d", "a"), ElementsAre("d", "a", "b")));
  auto stranger = DutiesOf(ring, "q");
  EXPECT_EQ(CodeOf(stranger.status()), ErrorCode::NOT_FOUND);
  EXPECT_THAT(std::string(stranger.status().message()), HasSubstr("member q has no place among 7 members"));
}

TEST(Duties, OfAMemberOfACode) {
  auto duties = DutiesOf({Scheme::Xor(2), {{"a", "b", "c"}}}, "b");
  ASSERT_TRUE(duties.ok()) << duties.status();
  EXPECT_EQ(duties->position, 1u);
  EXPECT_TRUE(duties->sends.empty() && duties->stores.empty());
}

// What must hold of any placement: everybody is seated once; copies are with the right number of others, and everybody
// stores as many; groups have the sizes that the scheme wants.
void Check(const Placement& placement, const std::vector<Member>& members) {
  ASSERT_EQ(placement.members(), members.size());
  const uint32_t copies = placement.scheme.is_copies() ? placement.scheme.copies : 1;
  std::map<std::string, size_t> stored;
  for (const Member& member : members) {
    auto duties = DutiesOf(placement, member.name);
    ASSERT_TRUE(duties.ok()) << duties.status();
    std::set<std::string> others(duties->sends.begin(), duties->sends.end());
    ASSERT_EQ(others.size(), copies - 1);
    ASSERT_EQ(others.count(member.name), 0u);
    ASSERT_EQ(duties->stores.size(), copies - 1);
    for (const std::string& other : others) {
      auto stores = DutiesOf(placement, other)->stores;
      ASSERT_EQ(std::count(stores.begin(), stores.end(), member.name), 1);
      ++stored[other];
    }
  }
  ASSERT_EQ(stored.size(), copies > 1 ? members.size() : 0);
  for (const auto& [name, count] : stored) ASSERT_EQ(count, copies - 1) << name;
  const auto sizes = Sizes(placement);
  ASSERT_GE(*std::min_element(sizes.begin(), sizes.end()), placement.scheme.width());
  if (placement.scheme.is_code()) {
    ASSERT_LE(*std::max_element(sizes.begin(), sizes.end()), *std::min_element(sizes.begin(), sizes.end()) + 1);
  }
}

TEST(Place, EveryRandomMembership) {
  Engine engine(20261123);
  for (int trial = 0; trial < 4000; ++trial) {
    SCOPED_TRACE(trial);
    const Scheme scheme = RandomScheme(engine);
    std::vector<Member> members = RandomMembers(engine, scheme, 40);
    auto placement = Place(scheme, members);
    ASSERT_TRUE(placement.ok()) << placement.status();
    Check(*placement, members);
    std::shuffle(members.begin(), members.end(), engine);
    ASSERT_TRUE(*Place(scheme, members) == *placement) << "the order of the list matters";
    if (HasFatalFailure()) return;
  }
}

TEST(Place, TheLargestMembershipThereMayBe) {
  for (const Scheme& scheme : {Mixed(3), Scheme::Copies(Kind::kRing, 3), Scheme::ReedSolomon(6, 2)}) {
    auto placement = Place(scheme, Nodes(kMaxMembers, 40));
    ASSERT_TRUE(placement.ok()) << placement.status();
    EXPECT_EQ(placement->members(), kMaxMembers);
  }
}

}  // namespace
}  // namespace ckptd::placement
