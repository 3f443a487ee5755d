// Of which groups a node keeps parity: those that the coordinator named, and when another grouping takes their place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "daemon/protect/parity_keeper_fixture.h"

namespace ckptd::protect {
namespace {

using region::kTestChunkBytes;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(ParityKeeperTest, WhatCannotBeFoldedTogetherIsRefusedToAll) {
  v1::OfferRequest odd = OfferOf(3, kStep10);
  odd.mutable_layout()->set_chunk_bytes(2 * kTestChunkBytes);
  const auto first = Offer(OfferOf(0, kStep10));
  const auto second = Offer(OfferOf(2, kStep10));
  const auto third = Offer(odd);
  for (const auto& said : {first, second, third}) {
    ASSERT_TRUE(said->has_value());
    EXPECT_EQ(CodeOf((*said)->status()), ErrorCode::INVALID_ARGUMENT) << (*said)->status();
  }
}

// A member cannot make this node keep parity of what nobody grouped.
TEST_F(ParityKeeperTest, OnlyGroupsThatTheCoordinatorNamedHaveParity) {
  v1::OfferRequest made_up = OfferOf(0, kStep10);
  made_up.mutable_parity()->set_ranks(3, 4000);
  v1::OfferRequest other_order = OfferOf(0, kStep10);
  other_order.mutable_parity()->set_ranks(2, 3);
  other_order.mutable_parity()->set_ranks(3, 2);
  v1::OfferRequest more = OfferOf(0, kStep10);
  more.mutable_parity()->set_parity(2);
  more.mutable_parity()->set_row(1);
  for (const v1::OfferRequest& request : {made_up, other_order, more}) {
    const auto said = Offer(request);
    ASSERT_TRUE(said->has_value());
    EXPECT_EQ(CodeOf((*said)->status()), ErrorCode::BUSY) << (*said)->status();
  }
}

TEST_F(ParityKeeperTest, AnotherGroupingWaitsWhileRanksLoadAndNoLonger) {
  Store(kStep10);
  auto loading = std::make_shared<v1::State>(*state_);
  loading->mutable_groups(0)->clear_agents();
  for (const Rank rank : {2, 1, 0}) loading->mutable_groups(0)->add_agents(Node(rank));
  loading->set_phase(v1::State::LOAD);
  state_ = loading;
  for (const auto& said : OfferRegrouped())
    EXPECT_EQ(CodeOf((**said).status()), ErrorCode::BUSY) << "somebody may rebuild";
  EXPECT_THAT(Complete(), ElementsAre(kStep10));
  auto running = std::make_shared<v1::State>(*loading);
  running->set_phase(v1::State::RUN);
  state_ = running;
  for (const auto& said : OfferRegrouped()) EXPECT_TRUE((**said).ok()) << (**said).status();
  EXPECT_THAT(Complete(), IsEmpty());
}

// The block of rank 3 in stripe 0 is its third one, and empty: there is nothing to move.
TEST_F(ParityKeeperTest, AnotherGroupingTakesThePlaceOfWhatIsComplete) {
  Store(kStep10);
  auto regrouped = std::make_shared<v1::State>(*state_);
  regrouped->mutable_groups(0)->clear_agents();
  for (const Rank rank : {2, 1, 0}) regrouped->mutable_groups(0)->add_agents(Node(rank));
  state_ = regrouped;
  v1::OfferRequest other = OfferOf(0, kStep10);
  other.mutable_parity()->clear_ranks();
  for (const Rank rank : {2, 1, 0}) other.mutable_parity()->add_ranks(rank);
  auto first = Offer(other);
  *other.mutable_copy() = NameOfCopy("gpt", 2, kStep10);
  *other.mutable_layout() = LayoutOf(2);
  auto second = Offer(other);
  Settle();
  ASSERT_TRUE(first->has_value() && second->has_value());
  EXPECT_TRUE((*first)->ok()) << (*first)->status();
  EXPECT_THAT(Complete(), IsEmpty()) << "it protects nobody any more";
  EXPECT_EQ(changes_, 2);
}

// There is no memory for both.
TEST_F(ParityKeeperTest, AnotherGroupingMakesRoomForWhatTakesItsPlace) {
  keeper_.reset();
  Restart({.dir = {}, .peers_memory = 5 * region::kSlotFile / 2});
  Make();
  Store(kStep10);
  auto regrouped = std::make_shared<v1::State>(*state_);
  regrouped->mutable_groups(0)->clear_agents();
  for (const Rank rank : {2, 1, 0}) regrouped->mutable_groups(0)->add_agents(Node(rank));
  regrouped->set_phase(v1::State::LOAD);
  state_ = regrouped;
  for (const auto& said : OfferRegrouped()) EXPECT_FALSE((**said).ok());
  EXPECT_THAT(Complete(), ElementsAre(kStep10)) << "somebody may rebuild";
  regrouped->set_phase(v1::State::RUN);
  state_ = regrouped;
  for (const auto& said : OfferRegrouped()) EXPECT_TRUE((**said).ok()) << (**said).status();
  EXPECT_THAT(Complete(), IsEmpty());
}

}  // namespace
}  // namespace ckptd::protect
