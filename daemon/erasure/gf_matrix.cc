#include "daemon/erasure/gf_matrix.h"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <utility>

namespace ckptd::erasure {

GfMatrix::GfMatrix(uint32_t row_count, uint32_t column_count)
    : rows(row_count), columns(column_count), values(size_t{row_count} * column_count) {}

std::span<const uint8_t> GfMatrix::row(uint32_t row) const {
  return std::span(values).subspan(size_t{row} * columns, columns);
}

void GfMatrix::SetRow(uint32_t row, std::span<const uint8_t> from) {
  std::copy(from.begin(), from.end(), values.begin() + static_cast<ptrdiff_t>(size_t{row} * columns));
}

GfMatrix CauchyRows(uint32_t rows, uint32_t columns) {
  GfMatrix whole(columns + rows, columns);
  gf_gen_cauchy1_matrix(whole.values.data(), static_cast<int>(whole.rows), static_cast<int>(columns));
  GfMatrix parity(rows, columns);
  for (uint32_t i = 0; i < rows; ++i) parity.SetRow(i, whole.row(columns + i));
  return parity;
}

std::optional<GfMatrix> Inverse(GfMatrix matrix) {
  GfMatrix inverse(matrix.rows, matrix.rows);
  const bool found = gf_invert_matrix(matrix.values.data(), inverse.values.data(), static_cast<int>(matrix.rows)) == 0;
  return found ? std::optional(std::move(inverse)) : std::nullopt;
}

GfMatrix Times(const GfMatrix& left, const GfMatrix& right) {
  GfMatrix product(left.rows, right.columns);
  for (uint32_t i = 0; i < left.rows; ++i) {
    for (uint32_t j = 0; j < left.columns; ++j) {
      for (uint32_t c = 0; c < right.columns; ++c) product.at(i, c) ^= gf_mul(left.at(i, j), right.at(j, c));
    }
  }
  return product;
}

}  // namespace ckptd::erasure
