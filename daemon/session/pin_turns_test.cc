#include "daemon/session/pin_turns.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

const PinTurns::Who kA{1, "gpt", 0};
const PinTurns::Who kB{2, "gpt", 1};
const PinTurns::Who kC{3, "other", 0};

TEST(PinTurns, OneAtATimeInTheOrderOfAsking) {
  PinTurns turns;
  EXPECT_EQ(turns.Next(Nanos(0)), std::nullopt);
  for (const auto& who : {kA, kB, kC, kB}) EXPECT_FALSE(turns.Ask(who));
  EXPECT_EQ(turns.Next(Nanos(0)), kA);
  EXPECT_EQ(turns.Next(Nanos(0)), std::nullopt);
  EXPECT_TRUE(turns.Waits(kB));
  EXPECT_FALSE(turns.Waits(kA));
  turns.Leave(kA);
  EXPECT_EQ(turns.Next(Nanos(0)), kB);
  turns.Leave(kB);
  EXPECT_EQ(turns.Next(Nanos(0)), kC) << "who asks twice has one place";
  turns.Leave(kC);
  EXPECT_EQ(turns.Next(Nanos(0)), std::nullopt);
}

TEST(PinTurns, ATurnEndsWithItsTime) {
  PinTurns turns;
  (void)turns.Ask(kA);
  (void)turns.Ask(kB);
  ASSERT_EQ(turns.Next(Nanos(5)), kA);
  EXPECT_EQ(turns.deadline(), Nanos(5) + PinTurns::kLongest);
  EXPECT_EQ(turns.Next(Nanos(4) + PinTurns::kLongest), std::nullopt);
  EXPECT_EQ(turns.Next(Nanos(5) + PinTurns::kLongest), kB);
  turns.Leave(kA);  // its DEVICES, too late: the turn is another's
  EXPECT_EQ(turns.Next(Nanos(6) + PinTurns::kLongest), std::nullopt);
}

TEST(PinTurns, AskingAgainInItsTurnIsGrantedAndNotLonger) {
  PinTurns turns;
  (void)turns.Ask(kA);
  ASSERT_EQ(turns.Next(Nanos(0)), kA);
  EXPECT_TRUE(turns.Ask(kA));
  EXPECT_EQ(turns.deadline(), PinTurns::kLongest);
  EXPECT_EQ(turns.Next(PinTurns::kLongest), std::nullopt);
  EXPECT_EQ(turns.deadline(), std::nullopt);
  EXPECT_FALSE(turns.Ask(kA)) << "its turn is over";
}

TEST(PinTurns, ToldOfOtherChangesKeepsItsPlace) {
  PinTurns turns;
  (void)turns.Ask(kA);
  (void)turns.Ask(kB);
  ASSERT_EQ(turns.Next(Nanos(0)), kA);
  turns.EndTurn(kB);  // not its turn
  EXPECT_TRUE(turns.Waits(kB));
  EXPECT_EQ(turns.Next(Nanos(0)), std::nullopt);
  turns.EndTurn(kA);
  EXPECT_EQ(turns.Next(Nanos(0)), kB);
}

TEST(PinTurns, TheEndOfAProcessEndsItsTurnAndItsPlaces) {
  PinTurns turns;
  for (const auto& who : {kA, kB, PinTurns::Who{1, "gpt", 7}, kC}) (void)turns.Ask(who);
  ASSERT_EQ(turns.Next(Nanos(0)), kA);
  turns.ProcessEnded(2);
  EXPECT_EQ(turns.Next(Nanos(0)), std::nullopt);
  turns.ProcessEnded(1);
  EXPECT_EQ(turns.Next(Nanos(0)), kC);
}

}  // namespace
}  // namespace ckptd
