#include "daemon/protect/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd::protect {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

TEST(RankGroups, TakeOneRankOfEachAgent) {
  const std::map<Rank, std::string> agents{{0, "A"}, {1, "A"}, {2, "B"}, {3, "B"}, {4, "C"}};
  const auto groups = RankGroupsOf({{"C", "A", "B"}}, agents);
  ASSERT_THAT(groups, SizeIs(2));
  EXPECT_THAT(groups[0].ranks, ElementsAre(4, 0, 2));
  EXPECT_THAT(groups[0].agents, ElementsAre("C", "A", "B"));
  EXPECT_THAT(groups[1].ranks, ElementsAre(1, 3)) << "C has no second one";
  EXPECT_EQ(groups[1].PlaceOf(3), 1u);
  EXPECT_EQ(groups[1].PlaceOf(4), std::nullopt);
}

TEST(RankGroups, NoCodeHasParityOnly) {
  EXPECT_FALSE(ShapeOf(2, 2));
  EXPECT_FALSE(ShapeOf(4, 0));
  EXPECT_EQ(ShapeOf(4, 1), (erasure::Shape{3, 1}));
}

TEST(RankGroups, WhatAnotherAgentCallsAGroupIsComparedWithState) {
  v1::State state;
  state.set_parity(1);
  for (Rank rank = 0; rank < 4; ++rank) {
    v1::RankClaim* claim = state.mutable_decision()->add_ranks();
    claim->set_rank(rank);
    claim->set_agent(std::string(1, static_cast<char>('A' + rank)));
  }
  for (const char* agent : {"C", "A", "B"})
    (state.groups_size() == 0 ? state.add_groups() : state.mutable_groups(0))->add_agents(agent);
  EXPECT_TRUE(IsGroupIn(state, {2, 0, 1}, 1));
  EXPECT_TRUE(IsGroupIn(state, {2, 1}, 1)) << "A may have fewer ranks";
  EXPECT_FALSE(IsGroupIn(state, {0, 2, 1}, 1)) << "another order";
  EXPECT_FALSE(IsGroupIn(state, {2, 0, 3}, 1)) << "D is in no group";
  EXPECT_FALSE(IsGroupIn(state, {2, 0, 4}, 1)) << "no such rank";
  EXPECT_FALSE(IsGroupIn(state, {2, 2}, 1));
  EXPECT_FALSE(IsGroupIn(state, {2, 0, 1}, 2));
  EXPECT_FALSE(IsGroupIn(state, {}, 1));
  state.set_parity(0);
  EXPECT_FALSE(IsGroupIn(state, {2, 0, 1}, 0));
}

}  // namespace
}  // namespace ckptd::protect
