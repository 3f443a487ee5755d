#include "daemon/protect/held_here.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/ids.h"

namespace ckptd::protect {
namespace {

using region::PeerKey;
using region::PeerKind;
using testing::ElementsAre;
using testing::IsEmpty;

// Agents A to E, each with two ranks: A has 0 and 1, and so on. A, B and C are one group, D and E another.
v1::State StateOf(uint32_t copies, uint32_t parity) {
  v1::State state;
  state.set_copies(copies);
  state.set_parity(parity);
  for (const std::vector<std::string>& agents : {std::vector<std::string>{"A", "B", "C"}, {"D", "E"}})
    state.mutable_groups()->Add()->mutable_agents()->Assign(agents.begin(), agents.end());
  for (Rank rank = 0; rank < 10; ++rank) {
    v1::RankClaim* claim = state.mutable_decision()->add_ranks();
    claim->set_rank(rank);
    claim->set_agent(std::string(1, static_cast<char>('A' + rank / 2)));
  }
  return state;
}

PeerKey Copy(Rank rank) { return {PeerKind::kCopy, rank}; }
PeerKey Parity(Rank rank) { return {PeerKind::kParity, rank}; }

TEST(HeldHere, CopiesOfThoseBeforeItInItsGroup) {
  EXPECT_THAT(HeldHere("B", StateOf(2, 0)), ElementsAre(Copy(0), Copy(1)));
  EXPECT_THAT(HeldHere("A", StateOf(2, 0)), ElementsAre(Copy(4), Copy(5)));
  EXPECT_THAT(HeldHere("A", StateOf(3, 0)), ElementsAre(Copy(2), Copy(3), Copy(4), Copy(5)));
  EXPECT_THAT(HeldHere("D", StateOf(2, 0)), ElementsAre(Copy(8), Copy(9)));
  EXPECT_THAT(HeldHere("F", StateOf(2, 0)), IsEmpty());
  EXPECT_THAT(HeldHere("A", StateOf(1, 0)), IsEmpty());
}

TEST(HeldHere, OneStripeOfEachGroupOfRanks) {
  EXPECT_THAT(HeldHere("A", StateOf(1, 1)), ElementsAre(Parity(0), Parity(1)));
  EXPECT_THAT(HeldHere("C", StateOf(1, 1)), ElementsAre(Parity(4), Parity(5)));
  EXPECT_THAT(HeldHere("F", StateOf(1, 1)), IsEmpty());
}

}  // namespace
}  // namespace ckptd::protect
