#include "daemon/placement/scheme.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/base/errors.h"

namespace ckptd::placement {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const Scheme& scheme, size_t members) {
  absl::Status status = CheckScheme(scheme, members);
  EXPECT_EQ(CodeOf(status), ErrorCode::INVALID_ARGUMENT) << ToString(scheme) << " of " << members;
  return std::string(status.message());
}

TEST(Scheme, NamesAreThoseOfTheCommandLine) {
  for (const char* name : {"none", "group", "ring", "mixed", "xor", "rs"}) {
    auto kind = ParseKind(name);
    ASSERT_TRUE(kind.ok()) << kind.status();
    EXPECT_STREQ(KindName(*kind), name);
  }
  EXPECT_THAT(std::string(ParseKind("pairs").status().message()),
              HasSubstr("unknown scheme \"pairs\"; there are none group ring mixed xor rs"));
  EXPECT_EQ(ToString(Scheme::Copies(Kind::kMixed, 3)), "mixed, 3 copies");
  EXPECT_EQ(ToString(Scheme::ReedSolomon(6, 2)), "rs 6+2");
}

TEST(Scheme, WhatCannotBeIsRefusedWithWhatCan) {
  EXPECT_TRUE(CheckScheme({}, 1).ok());
  EXPECT_TRUE(CheckScheme(Scheme::Copies(Kind::kRing, 2), 2).ok());
  EXPECT_TRUE(CheckScheme(Scheme::ReedSolomon(120, 8), 10'000).ok());
  EXPECT_THAT(ErrorOf(Scheme::Copies(Kind::kMixed, 1), 4), HasSubstr("1 is the scheme none"));
  EXPECT_THAT(ErrorOf(Scheme::Copies(Kind::kMixed, 17), 40), HasSubstr("2 to 16"));
  EXPECT_THAT(ErrorOf(Scheme::Copies(Kind::kGroup, 3), 16), HasSubstr("do not divide 16 nodes: the scheme mixed"));
  EXPECT_THAT(ErrorOf(Scheme::Copies(Kind::kMixed, 3), 2), HasSubstr("needs at least 3 nodes; there are 2"));
  EXPECT_THAT(ErrorOf(Scheme::ReedSolomon(6, 2), 7), HasSubstr("rs 6+2 needs at least 8 nodes"));
  EXPECT_THAT(ErrorOf(Scheme::ReedSolomon(0, 2), 7), HasSubstr("both begin at 1"));
  EXPECT_THAT(ErrorOf(Scheme::ReedSolomon(127, 2), 500), HasSubstr("together at most 128"));
  EXPECT_THAT(ErrorOf(Scheme::ReedSolomon(1, 0xffffffff), 500), HasSubstr("together at most 128"));
  EXPECT_THAT(ErrorOf({Kind::kXor, 1, 7, 2}, 16), HasSubstr("the scheme rs has more"));
  EXPECT_THAT(ErrorOf({}, 10'001), HasSubstr("at most 10000"));
}

// CHK-7b: parity beside data is 1/(n-1) in REFT's groups of n.
TEST(Cost, ParityBesideData) {
  constexpr uint64_t kBytes = 840'000'000;
  auto parity = [&](uint32_t n) {
    return static_cast<double>(CostOf(Scheme::Xor(n - 1), n, kBytes, 1).memory - kBytes) / kBytes;
  };
  EXPECT_DOUBLE_EQ(parity(2), 1);
  EXPECT_DOUBLE_EQ(parity(3), .5);
  EXPECT_NEAR(parity(4), .3333, 5e-5);
  EXPECT_NEAR(parity(8), .1429, 5e-5);
}

// CHK-9e: 100 billion parameters on 16 machines, shards of 75 GB, two versions.
TEST(Cost, CopiesAsGeminiCountsThem) {
  constexpr uint64_t kShard = 75'000'000'000;
  const Cost two = CostOf(Scheme::Copies(Kind::kGroup, 2), 16, kShard, 2);
  EXPECT_EQ(two.traffic, 75'000'000'000u);
  EXPECT_EQ(two.memory, 300'000'000'000u);
  EXPECT_EQ(two.rebuild, kShard);
  const Cost three = CostOf(Scheme::Copies(Kind::kMixed, 3), 16, kShard, 2);
  EXPECT_EQ(three.traffic, 150'000'000'000u);
  EXPECT_EQ(three.memory, 450'000'000'000u);
}

TEST(Cost, ReedSolomonAndNone) {
  const Cost rs = CostOf(Scheme::ReedSolomon(6, 2), 16, 6000, 2);
  EXPECT_EQ(rs.memory, 2u * (6000 + 2 * 1000));
  EXPECT_EQ(rs.traffic, 12000u);
  EXPECT_EQ(rs.rebuild, 36000u);
  const Cost odd = CostOf(Scheme::ReedSolomon(6, 2), 8, 6001, 1);
  EXPECT_EQ(odd.memory, 6001u + 2 * 1001) << "blocks are rounded up";
  const Cost wide = CostOf(Scheme::ReedSolomon(6, 2), 18, 7000, 1);
  EXPECT_EQ(wide.memory, 7000u + 2 * 1000) << "two groups of 9";
  EXPECT_EQ(wide.rebuild, 7 * 7000u);
  const Cost uneven = CostOf(Scheme::ReedSolomon(6, 2), 17, 6000, 1);
  EXPECT_EQ(uneven.memory, 6000u + 2 * 1000) << "in the group of 8";
  EXPECT_EQ(uneven.rebuild, 7 * 6000u) << "in the group of 9";
  const Cost none = CostOf({}, 16, 6000, 2);
  EXPECT_EQ(none.memory, 12000u);
  EXPECT_EQ(none.traffic, 0u);
}

TEST(Cost, TheLargestNumbersFit) {
  constexpr uint64_t kPiB = uint64_t{1} << 50;
  EXPECT_EQ(CostOf(Scheme::Copies(Kind::kRing, 16), 10'000, kPiB, 8).memory, 128 * kPiB);
  EXPECT_EQ(CostOf(Scheme::ReedSolomon(1, 127), 10'000, kPiB, 8).memory, 8 * 128 * kPiB);
}

}  // namespace
}  // namespace ckptd::placement
