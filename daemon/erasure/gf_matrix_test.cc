// The field and the matrices, beside what is computed bit by bit; and that every loss can be undone, which another
// matrix of ISA-L does not give.
#include "daemon/erasure/gf_matrix.h"

#include <gtest/gtest.h>
#include <isa-l/erasure_code.h>

#include <bit>

#include "daemon/erasure/naive_test_util.h"

namespace ckptd::erasure {
namespace {

// [I; C] of k columns, of which each choice of k rows is tried.
uint32_t LossesThatCannotBeUndone(const GfMatrix& parity) {
  const uint32_t data = parity.columns;
  uint32_t failures = 0;
  for (uint32_t kept = 0; kept < 1U << (data + parity.rows); ++kept) {
    if (std::popcount(kept) != static_cast<int>(data)) continue;
    GfMatrix rows(data, data);
    uint32_t next = 0;
    for (uint32_t member = 0; member < data + parity.rows; ++member) {
      if ((kept >> member & 1) == 0) continue;
      if (member < data) {
        rows.at(next++, member) = 1;
      } else {
        rows.SetRow(next++, parity.row(member - data));
      }
    }
    failures += Inverse(rows).has_value() ? 0 : 1;
  }
  return failures;
}

GfMatrix VandermondeRows(uint32_t rows, uint32_t columns) {
  GfMatrix whole(columns + rows, columns);
  gf_gen_rs_matrix(whole.values.data(), static_cast<int>(whole.rows), static_cast<int>(columns));
  GfMatrix parity(rows, columns);
  for (uint32_t i = 0; i < rows; ++i) parity.SetRow(i, whole.row(columns + i));
  return parity;
}

TEST(GfMatrix, TheFieldIsTheOneOfTheFormat) {
  for (unsigned a = 0; a < 256; ++a) {
    for (unsigned b = 0; b < 256; ++b) {
      GfMatrix left(1, 1), right(1, 1);
      left.at(0, 0) = static_cast<uint8_t>(a);
      right.at(0, 0) = static_cast<uint8_t>(b);
      ASSERT_EQ(Times(left, right).at(0, 0), naive::Mul(left.at(0, 0), right.at(0, 0))) << a << " * " << b;
    }
  }
}

TEST(GfMatrix, CauchyRowsAreTheOnesOfTheFormat) {
  for (const Shape& shape : {Shape{4, 2}, Shape{10, 4}, Shape{128, 127}, Shape{253, 2}}) {
    const GfMatrix rows = CauchyRows(shape.parity, shape.data);
    for (uint32_t i = 0; i < shape.parity; ++i) {
      for (uint32_t j = 0; j < shape.data; ++j) ASSERT_EQ(rows.at(i, j), naive::Coefficient(shape, i, j));
    }
  }
  // Written down, so that both cannot change together: 1/4, 1/5, 1/6, 1/7 and 1/5, 1/4, 1/7, 1/6.
  EXPECT_EQ(CauchyRows(2, 4).values, (std::vector<uint8_t>{0x47, 0xa7, 0x7a, 0xba, 0xa7, 0x47, 0xba, 0x7a}));
}

TEST(GfMatrix, AnInverseTimesItsMatrixIsOne) {
  const GfMatrix matrix = CauchyRows(7, 7);
  const GfMatrix one = Times(matrix, Inverse(matrix).value());
  for (uint32_t i = 0; i < 7; ++i) {
    for (uint32_t j = 0; j < 7; ++j) EXPECT_EQ(one.at(i, j), i == j ? 1 : 0);
  }
  EXPECT_FALSE(Inverse(GfMatrix(3, 3)).has_value());
}

TEST(GfMatrix, EveryLossOfACauchyCodeCanBeUndone) {
  for (uint32_t data = 1; data <= 9; ++data) {
    for (uint32_t parity = 1; data + parity <= 12; ++parity)
      EXPECT_EQ(LossesThatCannotBeUndone(CauchyRows(parity, data)), 0u) << data << "+" << parity;
  }
}

// Why it is not the other one; and that the test above can fail.
TEST(GfMatrix, SomeLossesOfAVandermondeCodeCannot) {
  EXPECT_EQ(LossesThatCannotBeUndone(VandermondeRows(3, 6)), 0u);
  EXPECT_GT(LossesThatCannotBeUndone(VandermondeRows(6, 5)), 0u);
}

}  // namespace
}  // namespace ckptd::erasure
