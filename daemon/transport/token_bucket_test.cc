#include "daemon/transport/token_bucket.h"

#include <gtest/gtest.h>

#include "daemon/base/units.h"

namespace ckptd::transport {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(TokenBucket, HoldsTheRateInTheLongRun) {
  TokenBucket bucket(100 * kMiB, 4 * kMiB);
  Nanos now{1};
  for (int i = 0; i < 1000; ++i) {
    now = bucket.ReadyAt(kMiB, now);
    ASSERT_LE(bucket.ReadyAt(kMiB, now), now) << "what it says is true";
    bucket.Take(kMiB, now);
  }
  EXPECT_NEAR(static_cast<double>(now.count()) / 1e9, (1000 - 4) / 100.0, 0.001);
}

TEST(TokenBucket, ABurstIsBoundedHoweverLongItRested) {
  TokenBucket bucket(kMiB, 3 * kMiB);
  int sent = 0;
  for (const Nanos now = seconds(3600); bucket.ReadyAt(kMiB, now) <= now; ++sent) bucket.Take(kMiB, now);
  EXPECT_EQ(sent, 3);
}

TEST(TokenBucket, AChunkLargerThanTheBurstGoesAndIsPaidAfterwards) {
  TokenBucket bucket(kMiB, kMiB);
  ASSERT_LE(bucket.ReadyAt(64 * kMiB, seconds(1)), seconds(1));
  bucket.Take(64 * kMiB, seconds(1));
  const Nanos next = bucket.ReadyAt(64 * kMiB, seconds(1));
  EXPECT_NEAR(static_cast<double>(next.count()) / 1e9, 1 + 64, 0.001);
}

TEST(TokenBucket, WithoutALimitItNeverWaits) {
  TokenBucket bucket(0, 0);
  bucket.Take(uint64_t{1} << 60, milliseconds(1));
  EXPECT_EQ(bucket.ReadyAt(uint64_t{1} << 60, milliseconds(2)), milliseconds(2));
}

}  // namespace
}  // namespace ckptd::transport
