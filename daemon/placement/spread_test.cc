#include "daemon/placement/spread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "daemon/base/errors.h"
#include "daemon/placement/placement_test_util.h"

namespace ckptd::placement {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Shared> MustFind(const Placement& placement, const std::vector<Member>& members) {
  auto shared = SharedDomains(placement, members);
  EXPECT_TRUE(shared.ok()) << shared.status();
  return *shared;
}

TEST(SharedDomains, NamesSetDomainAndWhetherItIsFatal) {
  const std::vector<Member> members = {{"a", "z", "r1", ""}, {"b", "z", "r1", ""}, {"c", "z", "r2", ""},
                                       {"d", "", "", "h"},   {"e", "", "", "h"},   {"f"}};
  const auto shared = MustFind({Mixed(3), {{"a", "b", "c"}, {"d", "e", "f"}}}, members);
  ASSERT_EQ(shared.size(), 3u);
  EXPECT_EQ(shared[0].level, Level::kHost);
  EXPECT_EQ(shared[0].domain, "h");
  EXPECT_THAT(shared[0].inside, ElementsAre("d", "e"));
  EXPECT_THAT(shared[0].holders, ElementsAre("d", "e", "f"));
  EXPECT_FALSE(shared[0].fatal) << "f lives";
  EXPECT_EQ(shared[1].level, Level::kRack);
  EXPECT_EQ(shared[1].domain, "z/r1");
  EXPECT_FALSE(shared[1].fatal);
  EXPECT_EQ(shared[2].level, Level::kZone);
  EXPECT_THAT(shared[2].inside, ElementsAre("a", "b", "c"));
  EXPECT_TRUE(shared[2].fatal);
}

TEST(SharedDomains, ACodeDiesOfMoreThanItsParity) {
  auto members = Nodes(4, 2);
  const std::vector<std::string> all = {"n00000", "n00001", "n00002", "n00003"};
  EXPECT_FALSE(MustFind({Scheme::ReedSolomon(2, 2), {all}}, members)[0].fatal);
  EXPECT_TRUE(MustFind({Scheme::Xor(3), {all}}, members)[0].fatal);
  members.pop_back();
  auto gone = SharedDomains({Scheme::Xor(3), {all}}, members);
  EXPECT_EQ(CodeOf(gone.status()), ErrorCode::INVALID_ARGUMENT);
  EXPECT_THAT(std::string(gone.status().message()), HasSubstr("member n00003"));
}

// Only those who hold copies of one thing must be apart: 3 copies in a ring of 6.
TEST(SharedDomains, InARingOnlyNeighboursCount) {
  const auto members = Nodes(6, 2);
  const Scheme ring = Scheme::Copies(Kind::kRing, 3);
  EXPECT_TRUE(MustFind({ring, {{"n00000", "n00002", "n00004", "n00001", "n00003", "n00005"}}}, members).empty());
  EXPECT_EQ(MustFind({ring, {{"n00000", "n00002", "n00001", "n00004", "n00003", "n00005"}}}, members).size(), 2u);
}

// Racks alone: whether anybody can place these members without two of a holder set in one rack.
bool CanBeApart(const Scheme& scheme, const std::map<std::string, size_t>& racks, size_t nodes) {
  const size_t groups = nodes / scheme.width();
  const size_t ring = nodes % scheme.width() == 0 ? 0 : scheme.width() + nodes % scheme.width();
  size_t full = 0;
  for (const auto& [rack, count] : racks) {
    if (count > groups) return false;
    full += count == groups ? 1 : 0;
  }
  // Any two of Algorithm 1's ring share a holder set, and the other groups take groups - 1 of a rack.
  return scheme.kind != Kind::kMixed || ring == 0 || (full <= ring && ring <= racks.size());
}

TEST(Place, RacksAreApartExactlyWhereTheyCanBe) {
  Engine engine(99);
  std::map<bool, int> seen;
  for (int trial = 0; trial < 6000; ++trial) {
    const Scheme scheme = RandomScheme(engine);
    if (scheme.kind == Kind::kNone) continue;
    auto members = RandomMembers(engine, scheme, 36);
    std::map<std::string, size_t> racks;
    const size_t names = Draw(engine, 1, members.size() + 4);
    for (Member& member : members) {
      member = {member.name, "", absl::StrCat("r", Draw(engine, 1, names)), ""};
      ++racks[member.rack];
    }
    const bool apart = MustFind(*Place(scheme, members), members).empty();
    ASSERT_EQ(apart, CanBeApart(scheme, racks, members.size()))
        << trial << ": " << ToString(scheme) << " of " << members.size() << " in " << racks.size() << " racks";
    ++seen[apart];
  }
  EXPECT_GT(seen[true], 1000);
  EXPECT_GT(seen[false], 1000);
}

// At every level at once no group has more of a domain than it must.
TEST(Place, DealtGroupsShareTheLoadOfEachDomain) {
  Engine engine(5);
  for (int trial = 0; trial < 2000; ++trial) {
    const Scheme scheme = trial % 2 == 0 ? Scheme::ReedSolomon(static_cast<uint32_t>(Draw(engine, 1, 6)), 2)
                                         : Scheme::Copies(Kind::kGroup, static_cast<uint32_t>(Draw(engine, 2, 5)));
    const auto members = RandomMembers(engine, scheme, 40);
    const Placement placement = *Place(scheme, members);
    const Roster roster = *Roster::Make(members);
    for (Level level : kLevels) {
      std::map<uint32_t, size_t> in_all;
      std::map<std::pair<uint32_t, size_t>, size_t> in_group;
      for (size_t g = 0; g < placement.groups.size(); ++g) {
        for (const std::string& name : placement.groups[g]) {
          const uint32_t domain = roster.Domain(level, *roster.Find(name));
          if (domain == 0) continue;
          ++in_all[domain];
          ++in_group[{domain, g}];
        }
      }
      const size_t groups = placement.groups.size();
      for (const auto& [where, count] : in_group) {
        ASSERT_LE(count, (in_all[where.first] + groups - 1) / groups) << trial << " " << LevelName(level);
      }
    }
  }
}

bool AnyFatal(const std::vector<Shared>& shared) {
  return std::any_of(shared.begin(), shared.end(), [](const Shared& each) { return each.fatal; });
}

// What must share a domain is not laid side by side: 3 copies in the ring of 5 that Algorithm 1 leaves, two racks.
TEST(Place, AShortRingDoesNotDieOfOneRack) {
  std::vector<Member> members = Nodes(5);
  for (size_t i = 0; i < 5; ++i) members[i].rack = i < 3 ? "a" : "b";
  const auto shared = MustFind(*Place(Mixed(3), members), members);
  EXPECT_FALSE(shared.empty());
  EXPECT_FALSE(AnyFatal(shared));
  members = Nodes(8);  // a group of 3, and this ring
  for (size_t i = 0; i < 8; ++i) members[i].rack = i < 4 ? "a" : i < 6 ? "b" : "c";
  EXPECT_FALSE(AnyFatal(MustFind(*Place(Mixed(3), members), members)));
}

// Two zones of three racks of two, 3 copies: no two copies in a rack, and not all three in a zone.
TEST(Place, ARingKeepsRacksApartAndDoesNotDieOfOneZone) {
  std::vector<Member> members = Nodes(12, 2);
  for (size_t i = 0; i < 12; ++i) members[i].zone = i < 6 ? "a" : "b";
  const auto shared = MustFind(*Place(Scheme::Copies(Kind::kRing, 3), members), members);
  EXPECT_FALSE(AnyFatal(shared));
  for (const Shared& each : shared) EXPECT_EQ(each.level, Level::kZone) << each.domain;
}

uint64_t PairCost(const Roster& roster, const std::vector<Seats>& groups) {
  uint64_t cost = 0;
  for (const Seats& group : groups) {
    for (size_t i = 0; i < group.size(); ++i) {
      for (size_t j = 0; j < i; ++j) cost += roster.SharedCost(group[i], group[j]);
    }
  }
  return cost;
}

// The least that any partition of these sizes has, seat by seat.
uint64_t Cheapest(const Roster& roster, uint32_t seat, std::vector<Seats>* groups, const std::vector<size_t>& sizes) {
  if (seat == roster.size()) return PairCost(roster, *groups);
  uint64_t best = std::numeric_limits<uint64_t>::max();
  for (size_t g = 0; g < sizes.size(); ++g) {
    if ((*groups)[g].size() == sizes[g]) continue;
    (*groups)[g].push_back(seat);
    best = std::min(best, Cheapest(roster, seat + 1, groups, sizes));
    (*groups)[g].pop_back();
  }
  return best;
}

// The greedy choice of Algorithm 1's ring, and what is dealt after it, against every partition: labels at all levels.
TEST(Place, NoPartitionSharesLess) {
  Engine engine(17);
  for (int trial = 0; trial < 300; ++trial) {
    const auto copies = static_cast<uint32_t>(Draw(engine, 2, 3));
    const size_t nodes = Draw(engine, copies, copies == 2 ? 7 : 8);
    std::vector<Member> members;
    for (size_t i = 0; i < nodes; ++i) members.push_back(RandomMember(engine, i));
    const Placement placement = *Place(Mixed(copies), members);
    const Roster roster = *Roster::Make(members);
    std::vector<Seats> seated;
    for (const auto& group : placement.groups) {
      Seats& seats = seated.emplace_back();
      for (const std::string& name : group) seats.push_back(*roster.Find(name));
    }
    std::vector<Seats> empty(seated.size());
    ASSERT_EQ(PairCost(roster, seated), Cheapest(roster, 0, &empty, Sizes(placement)))
        << trial << ": " << nodes << " nodes, " << copies << " copies";
  }
}

}  // namespace
}  // namespace ckptd::placement
