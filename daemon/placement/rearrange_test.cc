#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "daemon/base/errors.h"
#include "daemon/placement/placement_test_util.h"
#include "daemon/placement/seating.h"
#include "daemon/placement/spread.h"

namespace ckptd::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<size_t> Sorted(std::vector<size_t> sizes) {
  std::sort(sizes.rbegin(), sizes.rend());
  return sizes;
}

// Everybody once, and the sizes that Place() would give.
void CheckShape(const Placement& placement, const std::vector<Member>& members) {
  std::set<std::string> seated;
  for (const auto& group : placement.groups) seated.insert(group.begin(), group.end());
  ASSERT_EQ(seated.size(), members.size());
  ASSERT_EQ(placement.members(), members.size());
  for (const Member& member : members) ASSERT_EQ(seated.count(member.name), 1u);
  ASSERT_EQ(Sorted(Sizes(placement)), Sorted(Sizes(*Place(placement.scheme, members))));
}

// The bounds of placement.h.
size_t MostCopies(const Scheme& scheme, bool leaves, bool joins) {
  const size_t m = scheme.copies;
  if (leaves && joins) return 2 * (m - 1);
  if (scheme.kind == Kind::kRing) return leaves ? m - 1 : 2 * (m - 1);
  return leaves ? std::max(3 * (m - 1), m * (m - 1)) : m * m - 1;
}

void CheckMovement(const Placement& before, const Placement& after, bool leaves, bool joins) {
  const Movement moved = MoveBetween(before, after);
  if (after.scheme.is_copies()) {
    ASSERT_LE(moved.copies, MostCopies(after.scheme, leaves, joins));
    return;
  }
  ASSERT_LE(moved.groups, leaves && joins ? 1 : after.scheme.width());
  ASSERT_LT(moved.members, after.scheme.width());
}

// Members come and go one at a time; at each change every bound holds.
TEST(Rearrange, LittleMovesWhateverComesAndGoes) {
  Engine engine(7);
  size_t changes = 0;
  for (int trial = 0; trial < 400; ++trial) {
    Scheme scheme = RandomScheme(engine);
    if (scheme.kind == Kind::kGroup) scheme.kind = Kind::kMixed;  // groups alone do not take every number
    std::vector<Member> members = RandomMembers(engine, scheme, 30);
    Placement placement = *Place(scheme, members);
    for (int change = 0; change < 25; ++change, ++changes) {
      SCOPED_TRACE(absl::StrCat("trial ", trial, ", change ", change, ": ", ToString(scheme), " of ", members.size()));
      bool leaves = engine() % 3 != 0;
      const bool joins = !leaves || engine() % 2 == 0;
      if (leaves && !joins && members.size() == scheme.width()) continue;
      if (leaves) members.erase(members.begin() + static_cast<ptrdiff_t>(engine() % members.size()));
      if (joins) members.push_back(RandomMember(engine, 1000 + static_cast<size_t>(change)));
      std::shuffle(members.begin(), members.end(), engine);
      auto next = Rearrange(placement, members);
      ASSERT_TRUE(next.ok()) << next.status();
      CheckShape(*next, members);
      CheckMovement(placement, *next, leaves, joins);
      ASSERT_TRUE(*Rearrange(placement, members) == *next);
      if (HasFatalFailure()) return;
      placement = *next;
    }
  }
  EXPECT_GT(changes, 9000u);
}

// The bounds are reached, so that they are not idle: each number of members, each member that can leave.
TEST(Rearrange, TheBoundsAreReached) {
  for (uint32_t m : {2, 3, 4}) {
    size_t most_left = 0;
    size_t most_joined = 0;
    for (size_t nodes = m + 1; nodes <= 5 * m; ++nodes) {
      const Placement before = MustPlace(Mixed(m), nodes);
      const auto more = Nodes(nodes + 1);
      most_joined = std::max(most_joined, MoveBetween(before, *Rearrange(before, more)).copies);
      for (size_t gone = 0; gone < nodes; ++gone) {
        auto fewer = Nodes(nodes);
        fewer[gone].alive = false;
        most_left = std::max(most_left, MoveBetween(before, *Rearrange(before, fewer)).copies);
      }
    }
    EXPECT_EQ(most_left, MostCopies(Mixed(m), true, false)) << m;
    EXPECT_EQ(most_joined, MostCopies(Mixed(m), false, true)) << m;
  }
}

TEST(Rearrange, ASpareTakesTheSeatOfWhoIsGone) {
  const Placement before = MustPlace(Mixed(2), 1000);
  auto members = Nodes(1000);
  members[500].name = "spare";
  const Placement after = *Rearrange(before, members);
  EXPECT_EQ(MoveBetween(before, after).copies, 2u);
  Placement expected = before;
  for (auto& group : expected.groups)
    std::replace(group.begin(), group.end(), Nodes(501)[500].name, std::string("spare"));
  EXPECT_EQ(after, expected);
}

TEST(Rearrange, AParityGroupThatLosesOneIsTheOnlyOneThatChanges) {
  const Placement before = MustPlace(Scheme::ReedSolomon(6, 2), 66);  // 9 9 8 8 8 8 8 8
  auto members = Nodes(66);
  members[0].alive = false;
  EXPECT_EQ(MoveBetween(before, *Rearrange(before, members)).groups, 1u) << "of 9 it is of 8 now";
  const Placement even = MustPlace(Scheme::ReedSolomon(6, 2), 64);
  auto fewer = Nodes(64);
  fewer[0].alive = false;
  const Movement moved = MoveBetween(even, *Rearrange(even, fewer));
  EXPECT_EQ(moved.groups, 7u) << "its seven go to the seven other groups";
  EXPECT_EQ(moved.members, 7u);
}

TEST(Rearrange, NobodyChangedNothingMoves) {
  Engine engine(3);
  for (int trial = 0; trial < 200; ++trial) {
    const Scheme scheme = RandomScheme(engine);
    const auto members = RandomMembers(engine, scheme, 40);
    const Placement placement = *Place(scheme, members);
    ASSERT_EQ(*Rearrange(placement, members), placement);
  }
}

// Half of them go at once, then as many others come.
TEST(Rearrange, ManyAtOnce) {
  Engine engine(11);
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    Scheme scheme = RandomScheme(engine);
    if (scheme.kind == Kind::kGroup) scheme.kind = Kind::kMixed;
    auto members = RandomMembers(engine, scheme, 60);
    Placement placement = *Place(scheme, members);
    std::shuffle(members.begin(), members.end(), engine);
    members.resize(std::max<size_t>(scheme.width(), members.size() / 2));
    auto fewer = Rearrange(placement, members);
    ASSERT_TRUE(fewer.ok()) << fewer.status();
    CheckShape(*fewer, members);
    for (size_t i = 0; i < 30; ++i) members.push_back(RandomMember(engine, 2000 + i));
    auto more = Rearrange(*fewer, members);
    ASSERT_TRUE(more.ok()) << more.status();
    CheckShape(*more, members);
    if (HasFatalFailure()) return;
  }
}

// Of two newcomers and two seats each gets the one in the other's rack.
TEST(Rearrange, TheSeatThatSharesLeast) {
  const Placement before{Mixed(2), {{"a", "gone-1"}, {"b", "gone-2"}}};
  const Placement after =
      *Rearrange(before, {{"a", "", "r1", ""}, {"b", "", "r2", ""}, {"x", "", "r1", ""}, {"y", "", "r2", ""}});
  EXPECT_THAT(after.groups, ElementsAre(ElementsAre("a", "y"), ElementsAre("b", "x")));
  EXPECT_TRUE(SharedDomains(after, {{"a", "", "r1"}, {"b", "", "r2"}, {"x", "", "r1"}, {"y", "", "r2"}})->empty());
}

std::vector<Member> InRacks(const std::vector<std::pair<std::string, std::string>>& racks) {
  std::vector<Member> out;
  out.reserve(racks.size());
  for (const auto& [name, rack] : racks) out.push_back({name, "", rack, ""});
  return out;
}

TEST(Rearrange, ANewcomerGoesWhereItSharesNothing) {
  const Placement pairs{Mixed(2), {{"a", "b"}, {"c", "d"}}};
  const auto five = InRacks({{"a", "1"}, {"b", "2"}, {"c", "3"}, {"d", "4"}, {"x", "1"}});
  EXPECT_THAT(Sizes(*Rearrange(pairs, five)), ElementsAre(2, 3)) << "not to a";
  const Placement codes{Scheme::Xor(2), {{"a", "b", "c"}, {"d", "e", "f"}}};
  const auto eight =
      InRacks({{"a", "1"}, {"b", "2"}, {"c", "3"}, {"d", "4"}, {"e", "5"}, {"f", "6"}, {"x", "1"}, {"y", "4"}});
  EXPECT_THAT(Rearrange(codes, eight)->groups,
              ElementsAre(ElementsAre("a", "b", "c", "y"), ElementsAre("d", "e", "f", "x")));
}

TEST(Rearrange, IntoARingNotBesideItsRack) {
  const Placement ring{Scheme::Copies(Kind::kRing, 2), {{"a", "b", "c", "d"}}};
  const auto five = InRacks({{"a", "1"}, {"b", "2"}, {"c", "3"}, {"d", "4"}, {"x", "1"}});
  EXPECT_TRUE(SharedDomains(*Rearrange(ring, five), five)->empty());
}

TEST(Rearrange, WhoMovesIsWhoSharesNothingThereAndMostHere) {
  const Placement before{Mixed(2), {{"a", "gone"}, {"p", "q", "s"}}};
  auto next = Rearrange(before, InRacks({{"a", "1"}, {"p", "1"}, {"q", "2"}, {"s", "3"}}));
  EXPECT_THAT(next->groups, ElementsAre(ElementsAre("a", "q"), ElementsAre("p", "s"))) << "p is of a's rack";
  next = Rearrange(before, InRacks({{"a", "1"}, {"p", "2"}, {"q", "3"}, {"s", "3"}}));
  EXPECT_THAT(next->groups, ElementsAre(ElementsAre("a", "q"), ElementsAre("p", "s"))) << "q and s are of one rack";
}

TEST(Rearrange, APlacementThatCannotBeIsRefused) {
  auto twice = Rearrange({Mixed(2), {{"n00000", "n00001"}, {"n00000", "n00002"}}}, Nodes(4));
  EXPECT_EQ(CodeOf(twice.status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(twice.status().message()), HasSubstr("seats member n00000 twice"));
  EXPECT_EQ(CodeOf(Rearrange(MustPlace(Mixed(3), 9), Nodes(2)).status()), ErrorCode::INVALID_ARGUMENT);
}

TEST(MoveBetween, CountsWhatIsNew) {
  const Placement before{Mixed(2), {{"a", "b"}, {"c", "d"}}};
  EXPECT_EQ(MoveBetween(before, {Mixed(2), {{"d", "c"}, {"b", "a"}}}).copies, 0u);
  EXPECT_EQ(MoveBetween(before, {Mixed(2), {{"a", "c"}, {"b", "d"}}}).copies, 4u);
  const Placement codes{Scheme::Xor(2), {{"a", "b", "c"}, {"d", "e", "f"}}};
  const Movement moved = MoveBetween(codes, {Scheme::Xor(2), {{"a", "b", "d"}, {"c", "e", "f"}}});
  EXPECT_EQ(moved.groups, 2u);
  EXPECT_EQ(moved.members, 2u);
  EXPECT_EQ(moved.copies, 0u);
}

}  // namespace
}  // namespace ckptd::placement
