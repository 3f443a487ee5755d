#include "daemon/storage/durable_names.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

TEST(DurableNames, KnowsTheInodeOfWhatWasSet) {
  DurableNames names;
  EXPECT_EQ(names.Find("/store/job"), std::nullopt);
  names.Set("/store/job", 7);
  EXPECT_EQ(names.Find("/store/job"), 7u);
  EXPECT_EQ(names.Find("/store/jo"), std::nullopt);
  names.Set("/store/job", 8);
  EXPECT_EQ(names.Find("/store/job"), 8u) << "made anew";
  names.Forget("/store/job");
  EXPECT_EQ(names.Find("/store/job"), std::nullopt);
  names.Forget("/store/job");
}

TEST(DurableNames, ForgetsWhatWasNotUsedForLongest) {
  DurableNames names;
  names.Set("/store/job", 1);
  for (size_t step = 0; step < 10 * kMaxDurableNames; ++step) {
    ASSERT_EQ(names.Find("/store/job"), 1u) << "each step asks for its job";
    names.Set("/store/job/" + std::to_string(step), step);
  }
  const auto known = [&](size_t step) { return names.Find("/store/job/" + std::to_string(step)).has_value(); };
  EXPECT_FALSE(known(9 * kMaxDurableNames));
  EXPECT_TRUE(known(9 * kMaxDurableNames + 1));
  EXPECT_TRUE(known(10 * kMaxDurableNames - 1));
}

}  // namespace
}  // namespace ckptd
