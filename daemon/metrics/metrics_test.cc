#include "daemon/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <thread>

#include "absl/strings/str_cat.h"

namespace ckptd {
namespace {

using ::testing::ElementsAre;

TEST(Counter, AddsAndNeverGoesBack) {
  Counter counter;
  counter.Add();
  counter.Add(2.5);
  counter.RaiseTo(3);
  EXPECT_EQ(counter.value(), 3.5);
  counter.RaiseTo(10);
  EXPECT_EQ(counter.value(), 10);
}

TEST(Histogram, BoundsAreInclusive) {
  static constexpr std::array<double, 2> kBounds = {1, 10};
  Histogram histogram(kBounds);
  for (double value : {0.0, 1.0, 1.1, 10.0, 10.1, std::nan("")}) histogram.Observe(value);
  EXPECT_THAT(histogram.Counts(), ElementsAre(2, 2, 2));
}

TEST(Family, SameLabelsGiveTheSameSeries) {
  Family<Counter> family({"x_total", "x", {"a", "b"}});
  Counter& first = family.With({"1", "2"});
  EXPECT_EQ(&first, &family.With({"1", "2"}));
  EXPECT_NE(&first, &family.With({"2", "1"}));
}

TEST(Family, WhatIsNotRetainedIsShownNoMore) {
  Family<Gauge> family({"x", "x", {"peer", "way"}});
  family.With({"b", "tls"}).Set(1);
  family.With({"c", "tls"}).Set(2);
  family.Retain([](const LabelValues& labels) { return labels[0] == "c"; });
  std::vector<LabelValues> shown;
  family.ForEach([&](const LabelValues& labels, const Gauge&) { shown.push_back(labels); });
  EXPECT_THAT(shown, ElementsAre(LabelValues{"c", "tls"}));
  EXPECT_EQ(family.With({"c", "tls"}).value(), 2);
  EXPECT_EQ(family.With({"b", "tls"}).value(), 0) << "made anew";
}

TEST(Family, AFloodOfLabelsIsBounded) {
  Family<Counter> family({"x_total", "x", {"job"}});
  for (int i = 0; i < 5000; ++i) family.With({absl::StrCat(i)}).Add();
  size_t series = 0;
  double other = 0;
  double total = 0;
  family.ForEach([&](const LabelValues& values, const Counter& counter) {
    ++series;
    total += counter.value();
    if (values[0] == "other") other = counter.value();
  });
  EXPECT_EQ(series, Family<Counter>::kMaxSeries + 1);
  EXPECT_EQ(other, 4000);
  EXPECT_EQ(total, 5000);
}

TEST(Family, WhatIsReleasedMakesRoomAndWhatCountsForTheRestStays) {
  Family<Counter> family({"x_total", "x", {"job"}});
  for (size_t i = 0; i < Family<Counter>::kMaxSeries; ++i) family.With({absl::StrCat(i)}).Add();
  Counter& late = family.With({"late"});
  family.Release("job", "other");
  family.Release("tier", "7");
  late.Add();
  EXPECT_EQ(family.With({"later"}).value(), 1) << "the two count in one";
  family.Release("job", "7");
  family.Release("job", "8");
  family.With({"new"}).Add(5);
  double shown = 0;
  family.ForEach([&](const LabelValues& values, const Counter& counter) {
    if (values[0] == "new") shown = counter.value();
  });
  EXPECT_EQ(shown, 5);
}

TEST(Family, ThreadsLoseNothing) {
  static constexpr std::array<double, 1> kBounds = {0.5};
  Family<Histogram> family({"x_seconds", "x", {"job"}}, [] { return std::make_unique<Histogram>(kBounds); });
  Family<Counter> counters({"x_total", "x", {"job"}});
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        family.With({absl::StrCat(i % 3)}).Observe(i % 2);
        counters.With({"one"}).Add();
      }
    });
  for (std::thread& thread : threads) thread.join();
  uint64_t observed = 0;
  family.ForEach([&](const LabelValues&, const Histogram& histogram) {
    for (uint64_t count : histogram.Counts()) observed += count;
  });
  EXPECT_EQ(observed, 8000U);
  EXPECT_EQ(counters.With({"one"}).value(), 8000);
}

}  // namespace
}  // namespace ckptd
