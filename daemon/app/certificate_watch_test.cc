#include "daemon/app/certificate_watch.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

constexpr int64_t kDay = 86'400;

TEST(EndingAlarmTest, SaysItFromThirtyDaysBeforeOnceADay) {
  EndingAlarm alarm;
  Nanos now = std::chrono::hours(5);
  EXPECT_FALSE(alarm.Due(31 * kDay, now));
  EXPECT_TRUE(alarm.Due(30 * kDay, now));
  size_t said = 0;
  for (int64_t left = 30 * kDay; left > 10 * kDay; left -= 60, now += std::chrono::minutes(1))
    said += alarm.Due(left, now) ? 1 : 0;
  EXPECT_GE(said, 19u);
  EXPECT_LE(said, 20u);
}

TEST(EndingAlarmTest, SaysItAtOnceWhenLessIsLeftAndAgainAfterANewOne) {
  EndingAlarm alarm;
  const Nanos now = std::chrono::hours(5);
  EXPECT_TRUE(alarm.Due(8 * kDay, now));
  EXPECT_TRUE(alarm.Due(7 * kDay, now));
  EXPECT_FALSE(alarm.Due(2 * kDay, now));
  EXPECT_TRUE(alarm.Due(kDay, now));
  EXPECT_TRUE(alarm.Due(0, now));
  EXPECT_FALSE(alarm.Due(-kDay, now));
  EXPECT_TRUE(alarm.Due(-kDay, now + std::chrono::hours(24)));
  EXPECT_FALSE(alarm.Due(90 * kDay, now + std::chrono::hours(25))) << "a new one";
  EXPECT_TRUE(alarm.Due(29 * kDay, now + std::chrono::hours(26)));
}

}  // namespace
}  // namespace ckptd
