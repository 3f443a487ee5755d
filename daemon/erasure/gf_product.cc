#include "daemon/erasure/gf_product.h"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace ckptd::erasure {
namespace {

// Of one source at a time. All sources of a block lie in the second-level cache for codes as wide as 8 + 4.
constexpr size_t kBlockBytes = 128u << 10;
constexpr size_t kTableBytes = 32;  // of one coefficient, at most

using Indices = GfProduct::Indices;
using Pointers = absl::InlinedVector<unsigned char*, 16>;

// ISA-L takes what it only reads without const, too.
unsigned char* ForIsal(const void* bytes) { return static_cast<unsigned char*>(const_cast<void*>(bytes)); }

template <typename Run>
Indices LongerThan(std::span<const Run> runs, size_t bytes) {
  Indices longer;
  for (uint32_t i = 0; i < runs.size(); ++i) {
    if (runs[i].size() > bytes) longer.push_back(i);
  }
  return longer;
}

template <typename Run>
size_t Shortest(std::span<const Run> runs, const Indices& of, size_t bytes) {
  for (uint32_t i : of) bytes = std::min(bytes, runs[i].size());
  return bytes;
}

template <typename Run>
Pointers At(std::span<const Run> runs, const Indices& of, size_t offset) {
  Pointers pointers;
  for (uint32_t i : of) pointers.push_back(ForIsal(runs[i].data() + offset));
  return pointers;
}

void Advance(Pointers& pointers, size_t bytes) {
  for (unsigned char*& pointer : pointers) pointer += bytes;
}

GfMatrix PartOf(const GfMatrix& matrix, const Indices& rows, const Indices& columns) {
  GfMatrix part(static_cast<uint32_t>(rows.size()), static_cast<uint32_t>(columns.size()));
  for (uint32_t i = 0; i < part.rows; ++i) {
    for (uint32_t j = 0; j < part.columns; ++j) part.at(i, j) = matrix.at(rows[i], columns[j]);
  }
  return part;
}

std::vector<unsigned char> TablesOf(const GfMatrix& matrix) {
  std::vector<unsigned char> tables(kTableBytes * matrix.values.size());
  ec_init_tables(static_cast<int>(matrix.columns), static_cast<int>(matrix.rows), ForIsal(matrix.values.data()),
                 tables.data());
  return tables;
}

// `bytes` of every source into every output.
void MultiplyRun(std::span<const unsigned char> tables, Pointers sources, Pointers outputs, size_t bytes) {
  while (bytes > 0) {
    const size_t block = std::min(bytes, kBlockBytes);
    ec_encode_data(static_cast<int>(block), static_cast<int>(sources.size()), static_cast<int>(outputs.size()),
                   ForIsal(tables.data()), sources.data(), outputs.data());
    Advance(sources, block);
    Advance(outputs, block);
    bytes -= block;
  }
}

}  // namespace

GfProduct::GfProduct(GfMatrix matrix) : matrix_(std::move(matrix)), tables_(TablesOf(matrix_)) {}

void GfProduct::Multiply(std::span<const ConstBytes> sources, std::span<const Bytes> outputs) const {
  size_t begin = 0;
  for (Indices rows = LongerThan(outputs, 0); !rows.empty(); rows = LongerThan(outputs, begin)) {
    const Indices columns = LongerThan(sources, begin);
    const size_t end = Shortest(sources, columns, Shortest(outputs, rows, SIZE_MAX));
    MultiplyStretch(sources, outputs, rows, columns, begin, end);
    begin = end;
  }
}

void GfProduct::MultiplyStretch(std::span<const ConstBytes> sources, std::span<const Bytes> outputs,
                                const Indices& rows, const Indices& columns, size_t begin, size_t end) const {
  if (columns.empty()) {
    for (uint32_t row : rows) std::memset(outputs[row].data() + begin, 0, end - begin);
    return;
  }
  const bool whole = rows.size() == matrix_.rows && columns.size() == matrix_.columns;
  // Made anew, not cut out of the whole: how tables are laid out is ISA-L's own, and differs between its versions.
  const std::vector<unsigned char> part =
      whole ? std::vector<unsigned char>() : TablesOf(PartOf(matrix_, rows, columns));
  MultiplyRun(whole ? tables_ : part, At(sources, columns, begin), At(outputs, rows, begin), end - begin);
}

void GfProduct::MultiplyColumn(uint32_t column, ConstBytes source, std::span<const Bytes> outputs) const {
  Indices rows(matrix_.rows);
  std::iota(rows.begin(), rows.end(), 0);
  GfProduct(PartOf(matrix_, rows, {column})).Multiply(std::span(&source, 1), outputs);
}

void GfProduct::AddColumn(uint32_t column, ConstBytes source, std::span<const Bytes> outputs) const {
  Pointers targets = At(outputs, LongerThan(outputs, 0), 0);
  while (!source.empty()) {
    const size_t block = std::min(source.size(), kBlockBytes);
    ec_encode_data_update(static_cast<int>(block), static_cast<int>(matrix_.columns), static_cast<int>(matrix_.rows),
                          static_cast<int>(column), ForIsal(tables_.data()), ForIsal(source.data()), targets.data());
    Advance(targets, block);
    source = source.subspan(block);
  }
}

}  // namespace ckptd::erasure
