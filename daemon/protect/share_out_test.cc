#include "daemon/protect/share_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>

namespace ckptd::protect {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Range = ShareOut::Range;

// All of the range, one chunk each `pace`.
void Bring(ShareOut& shares, size_t source, const Range& range, Nanos& now, Nanos pace) {
  for (size_t chunk = range.first; chunk < range.first + range.count; ++chunk) {
    now += pace;
    EXPECT_TRUE(shares.Came(source, chunk, now));
  }
  EXPECT_TRUE(shares.Ended(source, now));
}

TEST(ShareOut, OneSourceBringsAll) {
  ShareOut shares(100, 1);
  Nanos now{1};
  size_t next = 0;
  while (const auto range = shares.Next(0, now)) {
    EXPECT_EQ(range->first, next);
    next += range->count;
    Bring(shares, 0, *range, now, milliseconds(1));
  }
  EXPECT_EQ(shares.missing(), 0u);
  EXPECT_EQ(shares.brought(0), 100u);
}

TEST(ShareOut, RangesBecomeShorterAndAreNeverTooShort) {
  ShareOut shares(1000, 2);
  Nanos now{1};
  EXPECT_EQ(shares.Next(0, now), (Range{0, 500})) << "half of what is there for one";
  EXPECT_EQ(shares.Next(1, now), (Range{500, 125})) << "a fourth of what is left for two";
  size_t before = 125;
  size_t ranges = 2;
  Bring(shares, 1, {500, 125}, now, milliseconds(1));
  for (auto range = shares.Next(1, now); range && range->first >= 500; range = shares.Next(1, now), ++ranges) {
    EXPECT_LE(range->count, std::max(before, 2 * ShareOut::kFewest));
    EXPECT_GE(range->count, ShareOut::kFewest);
    before = range->count;
    Bring(shares, 1, *range, now, milliseconds(1));
  }
  EXPECT_LT(ranges, 30u);
}

TEST(ShareOut, AFewChunksAreOneRange) {
  ShareOut shares(7, 2);
  EXPECT_EQ(shares.Next(0, Nanos(1)), (Range{0, 7}));
  EXPECT_EQ(shares.Next(1, Nanos(1)), std::nullopt);
}

TEST(ShareOut, WhatALostSourceDidNotBringIsForTheOthers) {
  ShareOut shares(8, 2);
  EXPECT_EQ(shares.Next(0, Nanos(1)), (Range{0, 4}));
  EXPECT_EQ(shares.Next(1, Nanos(1)), (Range{4, 4}));
  EXPECT_TRUE(shares.Came(0, 1, Nanos(2)));
  shares.Lose(0, Nanos(3));
  Nanos now{3};
  Bring(shares, 1, {4, 4}, now, Nanos(1));
  EXPECT_EQ(shares.Next(1, now), (Range{0, 1}));
  Bring(shares, 1, {0, 1}, now, Nanos(1));
  EXPECT_EQ(shares.Next(1, now), (Range{2, 2}));
  Bring(shares, 1, {2, 2}, now, Nanos(1));
  EXPECT_EQ(shares.missing(), 0u);
  EXPECT_EQ(shares.brought(0), 1u);
  EXPECT_EQ(shares.brought(1), 7u);
}

// One brings a chunk a millisecond, the other one needs two for each.
TEST(ShareOut, AFreeSourceTakesTheEndOfWhatAnotherHas) {
  ShareOut shares(40, 2);
  Nanos now{1};
  ASSERT_EQ(shares.Next(0, now), (Range{0, 20}));
  for (size_t next = 20; next < 40;) {
    const Range range = *shares.Next(1, now);
    EXPECT_EQ(range.first, next);
    next += range.count;
    Bring(shares, 1, range, now, milliseconds(1));
  }
  for (size_t chunk = 0; chunk < 10; ++chunk) EXPECT_TRUE(shares.Came(0, chunk, now));
  EXPECT_EQ(shares.Next(1, now), (Range{13, 7})) << "two thirds of ten";
  EXPECT_TRUE(shares.Came(0, 10, now)) << "its own";
  EXPECT_TRUE(shares.Came(0, 11, now));
  EXPECT_FALSE(shares.Came(0, 12, now)) << "the last that was left to it";
  EXPECT_TRUE(shares.Ended(0, now));
  Bring(shares, 1, {13, 7}, now, milliseconds(1));
  EXPECT_EQ(shares.missing(), 0u);
}

TEST(ShareOut, WhoHasOnlyJustBegunIsNotSlow) {
  ShareOut shares(8, 2);
  Nanos now{1};
  ASSERT_TRUE(shares.Next(0, now));
  Bring(shares, 1, *shares.Next(1, now), now, Nanos(1));
  EXPECT_EQ(shares.Next(1, now + milliseconds(200)), std::nullopt);
  EXPECT_EQ(shares.Next(1, now + milliseconds(300)), (Range{0, 4}));
}

// It may come back to life: what comes first counts.
TEST(ShareOut, ASourceThatStandsStillIsRelievedOfAll) {
  ShareOut shares(8, 2);
  Nanos now{1};
  const Range stands = *shares.Next(0, now);
  Bring(shares, 1, *shares.Next(1, now), now, milliseconds(1));
  std::set<size_t> taken;
  for (int i = 0; i < 100 && shares.missing() > 0; ++i) {
    now += milliseconds(200);
    const auto range = shares.Next(1, now);
    if (!range) continue;
    for (size_t chunk = range->first; chunk < range->first + range->count; ++chunk) {
      taken.insert(chunk);
      if (chunk == 0) {
        EXPECT_FALSE(shares.Came(0, 0, now)) << "came after all, and is the last that it has to bring";
      }
      EXPECT_TRUE(shares.Came(1, chunk, now += milliseconds(1)));
    }
    EXPECT_TRUE(shares.Ended(1, now));
  }
  EXPECT_EQ(taken.size(), stands.count);
  EXPECT_EQ(shares.brought(0), 1u);
  EXPECT_EQ(shares.brought(1), 7u);
  EXPECT_EQ(shares.missing(), 0u);
}

TEST(ShareOut, WhoHasShownNothingYetTakesAFewChunksOnlyFromWhoStandsStill) {
  ShareOut shares(7, 2);
  Nanos now{1};
  ASSERT_TRUE(shares.Next(0, now));
  EXPECT_EQ(shares.Next(1, now + milliseconds(500)), std::nullopt);
  EXPECT_TRUE(shares.Next(1, now + seconds(5)));
}

TEST(ShareOut, WhoIsAloneHasAllAndWhoJoinsLaterTakesOfIt) {
  ShareOut shares(1000, 2);
  Nanos now{1};
  EXPECT_EQ(shares.Rest(0, now), (Range{0, 1000}));
  for (size_t chunk = 0; chunk < 100; ++chunk) EXPECT_TRUE(shares.Came(0, chunk, now += milliseconds(10)));
  EXPECT_EQ(shares.Next(1, now), (Range{550, 450})) << "nine seconds are worth a try, as if it were as fast";
  for (size_t chunk = 100; chunk < 500; ++chunk) EXPECT_TRUE(shares.Came(0, chunk, now += milliseconds(1)));
  EXPECT_TRUE(shares.Came(1, 550, now)) << "it is as slow as can be";
  for (size_t chunk = 500; chunk < 549; ++chunk) EXPECT_TRUE(shares.Came(0, chunk, now += milliseconds(1)));
  EXPECT_FALSE(shares.Came(0, 549, now));
  EXPECT_TRUE(shares.Ended(0, now));
  const auto back = shares.Rest(0, now);
  ASSERT_TRUE(back);
  EXPECT_GT(back->count, 440u) << "what is slow gives it back";
  EXPECT_EQ(back->first + back->count, 1000u);
}

TEST(ShareOut, ARangeMayBeBounded) {
  ShareOut shares(1000, 3);
  Nanos now{1};
  EXPECT_EQ(shares.Next(0, now, 32), (Range{0, 32}));
  EXPECT_EQ(shares.Rest(1, now), (Range{32, 968}));
  for (size_t chunk = 32; chunk < 40; ++chunk) EXPECT_TRUE(shares.Came(1, chunk, now += milliseconds(10)));
  EXPECT_EQ(shares.Next(2, now, 32), (Range{968, 32})) << "of another one, too";
}

// As the storage reads a hundred gigabytes of an agent that stands still.
TEST(ShareOut, BoundedRangesAreTakenUntilNothingIsLeft) {
  ShareOut shares(25600, 2);
  Nanos now{1};
  ASSERT_EQ(shares.Rest(0, now), (Range{0, 25600}));
  now += seconds(5);
  size_t ranges = 0;
  for (auto range = shares.Next(1, now, 32); range; range = shares.Next(1, now, 32), ++ranges) {
    EXPECT_LE(range->count, 32u);
    Bring(shares, 1, *range, now, milliseconds(1));
  }
  EXPECT_EQ(shares.missing(), 0u);
  EXPECT_GT(ranges, ShareOut::kMostTaken);
}

TEST(ShareOut, WhoHasShownNothingYetIsNotTriedForLessThanASecond) {
  ShareOut shares(100, 2);
  Nanos now{1};
  ASSERT_TRUE(shares.Rest(0, now));
  for (size_t chunk = 0; chunk < 10; ++chunk) EXPECT_TRUE(shares.Came(0, chunk, now += milliseconds(10)));
  EXPECT_EQ(shares.Next(1, now), std::nullopt);
}

// Whatever the sources do, every chunk comes, none counts twice, and each range is one that was not there before.
TEST(ShareOut, WhateverHappensAllIsBroughtOnce) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const size_t chunks = 1 + random() % 300;
    const size_t sources = 1 + random() % 5;
    ShareOut shares(chunks, sources);
    std::vector<std::optional<Range>> given(sources);
    std::vector<size_t> at(sources);
    std::vector<bool> lost(sources);
    size_t counted = 0;
    size_t alive = sources;
    Nanos now{1};
    for (size_t turn = 0; shares.missing() != 0; ++turn) {
      ASSERT_LT(turn, 200000u) << "seed " << seed;
      const size_t source = random() % sources;
      now += milliseconds(random() % 50);
      if (lost[source]) continue;
      if (!given[source]) {
        given[source] = shares.Next(source, now);
        if (!given[source]) continue;
        ASSERT_LE(given[source]->first + given[source]->count, chunks);
        for (size_t i = 0; i < given[source]->count; ++i) ASSERT_TRUE(shares.Misses(given[source]->first + i));
        at[source] = given[source]->first;
      }
      if (alive > 1 && random() % 200 == 0) {
        shares.Lose(source, now);
        lost[source] = true;
        --alive;
        continue;
      }
      if (random() % (source + 1) != 0) continue;  // slower ones
      counted += shares.Misses(at[source]) ? 1 : 0;
      const bool more = shares.Came(source, at[source]++, now);
      const bool all = at[source] == given[source]->first + given[source]->count;
      if (more && !all && random() % 100 != 0) continue;
      const bool ended = shares.Ended(source, now);
      EXPECT_TRUE(ended || (more && !all)) << "seed " << seed;
      given[source].reset();
    }
    size_t brought = 0;
    for (size_t source = 0; source < sources; ++source) brought += shares.brought(source);
    EXPECT_EQ(counted, chunks);
    EXPECT_EQ(brought, chunks) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ckptd::protect
