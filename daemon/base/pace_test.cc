#include "daemon/base/pace.h"

#include <gtest/gtest.h>

#include <thread>

namespace ckptd {
namespace {

using Seconds = std::chrono::duration<double>;
using SteadyClock = std::chrono::steady_clock;

TEST(Pace, HoldsAReaderToItsRate) {
  Pace pace;
  const auto begin = SteadyClock::now();
  for (int i = 0; i < 10; ++i) pace.Spend(1000, 50'000);
  EXPECT_GE(Seconds(SteadyClock::now() - begin).count(), 0.2);
}

// Who was away does not read faster for it.
TEST(Pace, TimeThatWasNotUsedIsNotSaved) {
  Pace pace;
  pace.Spend(1000, 1'000'000);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto begin = SteadyClock::now();
  pace.Spend(5000, 50'000);
  EXPECT_GE(Seconds(SteadyClock::now() - begin).count(), 0.1);
}

TEST(Pace, StopLetsTheReaderGo) {
  Pace pace;
  const auto begin = SteadyClock::now();
  std::thread stopper([&pace] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    pace.Stop();
  });
  pace.Spend(1'000'000, 1);
  pace.Spend(1'000'000, 1);
  stopper.join();
  EXPECT_TRUE(pace.stopped());
  EXPECT_LT(Seconds(SteadyClock::now() - begin).count(), 60);
}

}  // namespace
}  // namespace ckptd
