#include "daemon/app/rank_saves.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

RecordHead SaveOf(AttemptId attempt, StepId step) {
  RecordHead head{};
  head.attempt = attempt;
  head.step = step;
  head.begin_unix_ns = 5'000'000'000;
  head.captured_unix_ns = 7'000'000'000;
  head.blocked_ns = 500'000'000;
  return head;
}

v1::RankStatus StatusOf(const RankSaves& saves, AttemptId seen) {
  v1::RankStatus status;
  saves.Fill(seen, &status);
  return status;
}

TEST(RankSaves, NothingIsToldOfWhatNeverWas) {
  RankSaves saves;
  EXPECT_EQ(StatusOf(saves, 0).last_drop(), "");
  EXPECT_FALSE(StatusOf(saves, 0).has_last_save());
  v1::SaveCounters counters;
  saves.AddTo(&counters);
  EXPECT_EQ(counters.dropped(), 0);
  EXPECT_TRUE(counters.dropped_because().empty());
}

TEST(RankSaves, TheLastOfEachAndHowManyOfAllRanks) {
  RankSaves first;
  first.Captured(SaveOf(1, 10), 4096);
  first.Dropped(12, ErrorCode::NO_FREE_SLOT);
  first.Dropped(14, ErrorCode::NO_FREE_SLOT);
  RankSaves second;
  second.Captured(SaveOf(1, 10), 4096);
  second.Captured(SaveOf(1, 12), 4096);
  second.Dropped(14, ErrorCode::BELOW_FLOOR);
  v1::SaveCounters counters;
  first.AddTo(&counters);
  second.AddTo(&counters);
  EXPECT_EQ(counters.captured(), 3);
  EXPECT_EQ(counters.dropped(), 3);
  EXPECT_EQ(counters.dropped_because().at("NO_FREE_SLOT"), 2);
  EXPECT_EQ(counters.dropped_because().at("BELOW_FLOOR"), 1);
  EXPECT_EQ(StatusOf(first, 1).last_drop(), "NO_FREE_SLOT");
  EXPECT_EQ(StatusOf(first, 1).last_drop_step(), 14);
  EXPECT_EQ(StatusOf(second, 1).last_save().step(), 12);
  EXPECT_EQ(StatusOf(second, 1).last_save().capture_seconds(), 2);
  EXPECT_EQ(StatusOf(second, 1).last_save().blocked_seconds(), 0.5);
  EXPECT_EQ(StatusOf(second, 1).last_save().capture_bytes_per_second(), 2048);
  EXPECT_FALSE(StatusOf(second, 2).has_last_save()) << "it was of the attempt before";
}

// Any number may stand in a bell.
TEST(RankSaves, ASaveThatEndsBeforeItBegins) {
  RankSaves saves;
  RecordHead head = SaveOf(1, 10);
  head.begin_unix_ns = head.captured_unix_ns + 1;
  saves.Captured(head, 4096);
  EXPECT_EQ(StatusOf(saves, 1).last_save().capture_seconds(), 0);
  EXPECT_EQ(StatusOf(saves, 1).last_save().capture_bytes_per_second(), 0);
}

}  // namespace
}  // namespace ckptd
