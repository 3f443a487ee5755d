#include "daemon/transport/backoff.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Backoff, PausesDoubleUpToTheLongestAndStayInTheirSecondHalf) {
  Backoff backoff(milliseconds(100), seconds(5), 7);
  Nanos whole = milliseconds(100);
  for (int i = 0; i < 100; ++i) {
    const Nanos pause = backoff.Next();
    EXPECT_GE(pause, whole / 2) << i;
    EXPECT_LE(pause, whole) << i;
    whole = std::min<Nanos>(2 * whole, seconds(5));
  }
  EXPECT_EQ(whole, seconds(5));
}

TEST(Backoff, TwoNodesThatFailTogetherDoNotComeBackTogether) {
  std::set<int64_t> pauses;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Backoff backoff(seconds(1), seconds(5), seed);
    pauses.insert(backoff.Next().count() / 10'000'000);  // of 10 ms: there are 51 of them
  }
  EXPECT_GT(pauses.size(), 45U);
}

TEST(Backoff, BeginsAnewAfterReset) {
  Backoff backoff(milliseconds(100), seconds(5), 1);
  for (int i = 0; i < 20; ++i) (void)backoff.Next();
  EXPECT_GE(backoff.Next(), milliseconds(2500));
  backoff.Reset();
  EXPECT_LE(backoff.Next(), milliseconds(100));
}

TEST(Backoff, TheShortestPauseIsNoSpin) {
  Backoff backoff(Nanos(1), Nanos(1), 1);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(backoff.Next(), Nanos(1));
}

}  // namespace
}  // namespace ckptd::transport
