// The check is a format: trainer and agent of different builds must agree on it.
#include "client/core/copy/fill_check.h"

#include <gtest/gtest.h>

namespace ckptd {
namespace {

TEST(FillCheck, IsTheChecksumOfIdentityAndChunks) {
  FillCheck check(9, 100, 4);
  for (uint32_t crc : {50, 51, 52}) check.Add(crc);
  EXPECT_EQ(check.value(), 0x4e62e011u);  // by another implementation
}

TEST(FillCheck, ChangesWithEachPartAndTheOrder) {
  const auto of = [](uint64_t epoch, uint64_t step, uint64_t attempt, uint32_t first, uint32_t second) {
    FillCheck check(epoch, step, attempt);
    check.Add(first);
    check.Add(second);
    return check.value();
  };
  const uint32_t value = of(9, 100, 4, 1, 2);
  EXPECT_NE(of(10, 100, 4, 1, 2), value);
  EXPECT_NE(of(9, 101, 4, 1, 2), value);
  EXPECT_NE(of(9, 100, 5, 1, 2), value);
  EXPECT_NE(of(9, 100, 4, 2, 1), value);
}

}  // namespace
}  // namespace ckptd
