#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "daemon/base/errors.h"
#include "tools/bench/echo.h"
#include "tools/bench/measure.h"
#include "tools/bench/network_limits.h"
#include "tools/bench/options.h"
#include "tools/bench/program.h"
#include "tools/bench/report.h"
#include "tools/bench/room.h"
#include "tools/bench/session.h"
#include "tools/bench/usage.h"

namespace ckptd::bench {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(SummaryTest, MedianOfOddAndEvenAndTheEnds) {
  Summary odd = Summarize({5, 1, 100});
  EXPECT_EQ(odd.median, 5);
  EXPECT_EQ(odd.min, 1);
  EXPECT_EQ(odd.max, 100);
  EXPECT_EQ(Summarize({4, 1, 3, 100}).median, 3.5);
  EXPECT_EQ(Summarize({7}).median, 7);
}

TEST(AlternateTest, EachIsFirstInEveryOtherRoundAndTheFirstRoundIsThrownAway) {
  std::string order;
  double ours_value = 1000;  // of the round that must not count
  auto ours = [&]() -> absl::StatusOr<double> {
    order += 'o';
    return std::exchange(ours_value, 2);
  };
  auto limit = [&]() -> absl::StatusOr<double> {
    order += 'l';
    return 4;
  };
  auto found = Alternate(3, ours, limit);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(order, "olloollo");
  EXPECT_EQ(found->rounds, 3u);
  EXPECT_EQ(found->ours.max, 2);
  EXPECT_EQ(found->limit.median, 4);
}

TEST(AlternateTest, AnErrorEndsIt) {
  int limits = 0;
  auto ours = []() -> absl::StatusOr<double> { return Error(ErrorCode::DEVICE, "broken"); };
  auto limit = [&]() -> absl::StatusOr<double> { return ++limits; };
  EXPECT_EQ(Alternate(3, ours, limit).status().message(), "broken");
  EXPECT_EQ(limits, 0);
}

TEST(NetworkLimitsTest, WhatTheProgramsPrintIsRead) {
  const auto iperf = ParseIperf(R"({"end":{"sum_sent":{"bits_per_second":1e9},"sum_received":{"seconds":1,
                                    "bits_per_second":	1.6e+10, "sender":true}}})");
  ASSERT_TRUE(iperf.ok()) << iperf.status();
  EXPECT_EQ(*iperf, 2);
  const auto ucx = ParseUcxPerf("[thread 0] 7 1 1 1 1 1 1 1\nFinal:   2000   0.1  357.5  357.6  100.5  1000.00  3 4\n");
  ASSERT_TRUE(ucx.ok()) << ucx.status();
  EXPECT_EQ(*ucx, 1000.0 * (1 << 20) / 1e9);
  for (const char* other : {"", "{}", "Final:", "Final: 1 2 3 4 5", R"("sum_received":{"bits_per_second":x})"}) {
    EXPECT_FALSE(ParseIperf(other).ok()) << other;
    EXPECT_FALSE(ParseUcxPerf(other).ok()) << other;
  }
}

TEST(ProgramTest, ItsOutputIsReadAndItEndsWithTheObject) {
  EXPECT_TRUE(Installed("sh"));
  EXPECT_FALSE(Installed("no-such-program-of-ckptd"));
  auto program = Program::Start({"sh", "-c", "echo ready $WORD; read x; echo end"}, {"WORD=now"});
  ASSERT_TRUE(program.ok()) << program.status();
  ASSERT_TRUE((*program)->Await("ready now", std::chrono::seconds(10)).ok());
  auto said = (*program)->Finish(std::chrono::seconds(10));
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(*said, "ready now\nend\n");
  auto fails = Program::Start({"sh", "-c", "echo no; exit 3"});
  ASSERT_TRUE(fails.ok()) << fails.status();
  EXPECT_FALSE((*fails)->Finish(std::chrono::seconds(10)).ok());
  auto silent = Program::Start({"sh", "-c", "sleep 600"});
  ASSERT_TRUE(silent.ok()) << silent.status();
  EXPECT_EQ(CodeOf((*silent)->Await("x", std::chrono::milliseconds(50))), ErrorCode::TIMEOUT);
}

TEST(RepeatTest, OneMoreThanCounts) {
  std::vector<bool> counted;
  auto measure = [&](bool counts) {
    counted.push_back(counts);
    return absl::OkStatus();
  };
  ASSERT_TRUE(Repeat(2, measure).ok());
  EXPECT_EQ(counted, (std::vector<bool>{false, true, true}));
}

TEST(OptionsTest, ACaseHasItsOwnNumberOfRoundsUnlessOneIsGiven) {
  EXPECT_EQ(ParseCommandLine({"a"})->options.RoundsOr(30), 30u);
  EXPECT_EQ(ParseCommandLine({"a", "--n", "3"})->options.RoundsOr(30), 3u);
}

TEST(OptionsTest, ChunksAreTheAgentsChoiceUnlessTheirSizeIsGiven) {
  EXPECT_EQ(ParseCommandLine({"a"})->options.chunk, 0u);
  EXPECT_EQ(ParseCommandLine({"a", "--chunk", "4MiB"})->options.chunk, 4u << 20);
}

TEST(ReportTest, WhatDeviceItWas) {
  Line line = {"gpu", "ms", "1 ms", {{2, 1, 3}, {1, 0.5, 4}, 5}, "", "a \"GPU\""};
  EXPECT_EQ(FormatLine(line), R"({"case":"gpu","value":2,"unit":"ms","limit":1,"ratio":2,"n":5,"spread":[1,3],)"
                              R"("limit_spread":[0.5,4],"what":"1 ms","device":"a \"GPU\""})");
  line.skipped = "why";
  EXPECT_EQ(FormatLine(line), R"({"case":"gpu","skipped":"why","device":"a \"GPU\""})");
  line.device = "";
  EXPECT_EQ(FormatLine(line), R"({"case":"gpu","skipped":"why"})");
}

TEST(RoomTest, TheStateShrinksToWhateverIsShort) {
  const GpuRoom plenty = {100 * kGiB, 100 * kGiB, 100 * kGiB, false};
  EXPECT_EQ(FittingState(plenty, 12 * kGiB), 12 * kGiB);
  for (uint64_t GpuRoom::*which : {&GpuRoom::device, &GpuRoom::region, &GpuRoom::memory}) {
    GpuRoom room = plenty;
    room.*which = 8 * kGiB;
    const uint64_t bytes = FittingState(room, 12 * kGiB);
    EXPECT_GT(bytes, kGiB);
    EXPECT_LT(bytes, 8 * kGiB);
    EXPECT_EQ(NoGpuRoom(room, bytes), "");
    EXPECT_NE(NoGpuRoom(room, 12 * kGiB), "");
    room.*which = 0;
    EXPECT_EQ(FittingState(room, 12 * kGiB), 0u);
  }
}

TEST(RoomTest, TheHostDevicesMemoryIsTheHosts) {
  GpuRoom room = {100 * kGiB, 100 * kGiB, 16 * kGiB, false};
  const uint64_t apart = FittingState(room, 12 * kGiB);
  room.shared = true;
  EXPECT_LT(FittingState(room, 12 * kGiB), apart);
  EXPECT_NE(NoGpuRoom(room, UINT64_MAX), "");
}

TEST(RoomTest, WhatAHostsStateNeeds) {
  Options options;
  EXPECT_NE(*NoRoom(options, kGiB << 20, 0), "");
  EXPECT_NE(*NoRoom(options, UINT64_MAX, 0), "");
  options.ranks = 64;
  EXPECT_NE(*NoRoom(options, UINT64_MAX >> 13, 0), "");  // sums do not overflow into room
}

TEST(EchoTest, AnswersAreWhole) {
  for (auto [request, answer] : {std::pair<size_t, size_t>{0, 0}, {1, 1 << 20}, {1 << 20, 1}}) {
    auto echo = Echo::Make(request, answer);
    ASSERT_TRUE(echo.ok()) << echo.status();
    for (int i = 0; i < 3; ++i) EXPECT_TRUE((*echo)->RoundTrip().ok());
  }
}

// Of this process, which knows what it does.
TEST(UsageTest, CountsTimeSleepsAndMemory) {
  const TimePoint begin = Now();  // before the other clock: what is used between the two readings was used since
  const double used = CpuSecondsOf(getpid()).value();
  while (CpuSecondsOf(getpid()).value() < used + 0.05) {
  }
  EXPECT_GE(SecondsSince(begin), 0.05);
  const uint64_t sleeps = SleepsOf(getpid()).value();
  for (int i = 0; i < 10; ++i) usleep(1000);
  EXPECT_GE(SleepsOf(getpid()).value(), sleeps + 10);
  const uint64_t memory = OwnMemoryOf(getpid()).value();
  const std::vector<char> more(64 << 20, 'x');
  EXPECT_GE(OwnMemoryOf(getpid()).value(), memory + (60 << 20));
  EXPECT_EQ(more.back(), 'x');
}

TEST(UsageTest, AProcessThatIsNotThereIsAnError) {
  EXPECT_FALSE(CpuSecondsOf(-5).ok());
  EXPECT_FALSE(SleepsOf(-5).ok());
  EXPECT_FALSE(OwnMemoryOf(-5).ok());
}

TEST(SessionTest, NamesSortAsTheirNumbers) {
  EXPECT_EQ(TensorName(7), "layer.0000007");
  EXPECT_LT(TensorName(9), TensorName(10));
}

}  // namespace
}  // namespace ckptd::bench
