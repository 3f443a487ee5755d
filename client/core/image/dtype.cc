#include "client/core/image/dtype.h"

#include <array>
#include <cstddef>

namespace ckptd {
namespace {

struct Row {
  std::string_view name;
  uint32_t bits;
};

// In the order of the enum.
constexpr std::array<Row, kDtypeCount> kRows = {{
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
}};

}  // namespace

std::string_view DtypeName(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].name; }

uint32_t DtypeBits(Dtype dtype) { return kRows[static_cast<size_t>(dtype)].bits; }

std::optional<Dtype> ParseDtype(std::string_view name) {
  for (size_t i = 0; i < kRows.size(); ++i) {
    if (kRows[i].name == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

std::optional<uint64_t> TensorBytes(Dtype dtype, std::span<const uint64_t> shape) {
  // One bound serves for every intermediate product: a dimension of 0 must not hide an overflow before or after it,
  // because the reference refuses such a shape too.
  uint64_t bits = DtypeBits(dtype);
  for (uint64_t dimension : shape) {
    if (dimension > kMaxFormatNumber || __builtin_mul_overflow(bits, dimension, &bits)) return std::nullopt;
  }
  if (bits % 8 != 0 || bits / 8 > kMaxFormatNumber) return std::nullopt;
  return bits / 8;
}

}  // namespace ckptd
