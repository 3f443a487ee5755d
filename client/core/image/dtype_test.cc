#include "client/core/image/dtype.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ckptd {
namespace {

using Shape = std::vector<uint64_t>;

TEST(Dtype, NamesRoundTrip) {
  for (uint8_t i = 0; i < kDtypeCount; ++i) {
    auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(ParseDtype(DtypeName(dtype)), dtype) << DtypeName(dtype);
  }
  for (const char* bad : {"", "f32", "C128", "F8", "F32 ", "BOOLEAN"}) EXPECT_FALSE(ParseDtype(bad)) << bad;
}

TEST(Dtype, BitsOfEveryRow) {
  const std::pair<Dtype, uint32_t> rows[] = {
      {Dtype::kBool, 8},       {Dtype::kF4, 4},     {Dtype::kF6E2M3, 6}, {Dtype::kF6E3M2, 6}, {Dtype::kU8, 8},
      {Dtype::kI8, 8},         {Dtype::kF8E5M2, 8}, {Dtype::kF8E4M3, 8}, {Dtype::kF8E8M0, 8}, {Dtype::kF8E4M3Fnuz, 8},
      {Dtype::kF8E5M2Fnuz, 8}, {Dtype::kI16, 16},   {Dtype::kU16, 16},   {Dtype::kF16, 16},   {Dtype::kBF16, 16},
      {Dtype::kI32, 32},       {Dtype::kU32, 32},   {Dtype::kF32, 32},   {Dtype::kC64, 64},   {Dtype::kF64, 64},
      {Dtype::kI64, 64},       {Dtype::kU64, 64}};
  ASSERT_EQ(std::size(rows), kDtypeCount);
  for (auto [dtype, bits] : rows) EXPECT_EQ(DtypeBits(dtype), bits) << DtypeName(dtype);
}

TEST(Dtype, Bytes) {
  EXPECT_EQ(TensorBytes(Dtype::kF32, Shape{}), 4U);
  EXPECT_EQ(TensorBytes(Dtype::kBF16, Shape{3, 5}), 30U);
  EXPECT_EQ(TensorBytes(Dtype::kF64, Shape{3, 0, 7}), 0U);
  EXPECT_EQ(TensorBytes(Dtype::kF4, Shape{3, 2}), 3U);
  EXPECT_EQ(TensorBytes(Dtype::kF6E2M3, Shape{4}), 3U);
  EXPECT_FALSE(TensorBytes(Dtype::kF4, Shape{3}));
  EXPECT_FALSE(TensorBytes(Dtype::kF6E3M2, Shape{2}));
}

TEST(Dtype, ProductsAreChecked) {
  EXPECT_EQ(TensorBytes(Dtype::kU8, Shape{kMaxFormatNumber}), kMaxFormatNumber);
  EXPECT_FALSE(TensorBytes(Dtype::kU8, Shape{kMaxFormatNumber + 1}));
  EXPECT_FALSE(TensorBytes(Dtype::kU8, Shape{kMaxFormatNumber, 2}));
  EXPECT_FALSE(TensorBytes(Dtype::kU64, Shape{uint64_t{1} << 32, uint64_t{1} << 32}));
  EXPECT_FALSE(TensorBytes(Dtype::kU8, Shape{uint64_t{1} << 40, uint64_t{1} << 40, 0}));
}

}  // namespace
}  // namespace ckptd
