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
  EXPECT_THAT(Complete(), ElementsAre(kStep10));
}

// What is lost before all have made the new one is rebuilt from the old.
TEST_F(ParityKeeperTest, ParityOfAnotherGroupingStaysBesideThatOfTheNewOne) {
  Store(kStep10);
  auto regrouped = std::make_shared<v1::State>(*state_);
  regrouped->mutable_groups(0)->clear_agents();
  for (const Rank rank : {2, 1, 0}) regrouped->mutable_groups(0)->add_agents(Node(rank));
  state_ = regrouped;
  StoreRegrouped();
  EXPECT_THAT(Complete(), ElementsAre(kStep10, kStep10));
  EXPECT_EQ(keeper_->ParityOf("gpt").at(0).ranks_size() + keeper_->ParityOf("gpt").at(1).ranks_size(), 4 + 3);
  EXPECT_TRUE(Describe(2, kStep10).ok()) << "whoever rebuilds reads the old one";
  for (const auto& said : OfferRegrouped()) EXPECT_TRUE((***said).have());

  Restart();
  Make();
  EXPECT_THAT(Complete(), ElementsAre(kStep10, kStep10)) << "also for a successor";
  keeper_->VerifyAdopted();
  Settle();
  for (const region::PeerEntry& entry : region_->peers().List()) EXPECT_TRUE(entry.verified) << entry.layout_crc;
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
