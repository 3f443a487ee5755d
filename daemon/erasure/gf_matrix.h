// Small matrices over GF(2^8), the coefficients of a code; gf_product.h is what multiplies images by them.
//
// GF(2^8): a byte is a polynomial over GF(2), bit i the coefficient of x^i. Addition is XOR, multiplication is modulo
// x^8 + x^4 + x^3 + x^2 + 1 (0x11d), the field of ISA-L. Parity that one agent made is read by others, so field and
// matrices are a format: they never change for a code of the same shape.
//
// Threads: values and pure functions.
#ifndef CKPTD_DAEMON_ERASURE_GF_MATRIX_H_
#define CKPTD_DAEMON_ERASURE_GF_MATRIX_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ckptd::erasure {

struct GfMatrix {
  GfMatrix(uint32_t row_count, uint32_t column_count);  // zeros

  [[nodiscard]] uint8_t& at(uint32_t row, uint32_t column) { return values[size_t{row} * columns + column]; }
  [[nodiscard]] uint8_t at(uint32_t row, uint32_t column) const { return values[size_t{row} * columns + column]; }
  [[nodiscard]] std::span<const uint8_t> row(uint32_t row) const;
  void SetRow(uint32_t row, std::span<const uint8_t> from);

  uint32_t rows;
  uint32_t columns;
  std::vector<uint8_t> values;  // row by row
};

// Parity rows of Reed-Solomon: C(i, j) = 1 / ((columns + i) ^ j), ISA-L's gf_gen_cauchy1_matrix without the identity
// above it. rows + columns <= 256, so that no two of the numbers are equal.
[[nodiscard]] GfMatrix CauchyRows(uint32_t rows, uint32_t columns);

// None when `matrix`, which is square, is singular.
[[nodiscard]] std::optional<GfMatrix> Inverse(GfMatrix matrix);

// left.columns == right.rows.
[[nodiscard]] GfMatrix Times(const GfMatrix& left, const GfMatrix& right);

}  // namespace ckptd::erasure

#endif  // CKPTD_DAEMON_ERASURE_GF_MATRIX_H_
