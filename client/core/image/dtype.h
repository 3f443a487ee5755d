// Element types of the safetensors format. The strings are the format's; no other may ever be written.
#ifndef CKPTD_CLIENT_CORE_IMAGE_DTYPE_H_
#define CKPTD_CLIENT_CORE_IMAGE_DTYPE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace ckptd {

// Numbers are fixed once shipped (they may travel in socket messages); add at the end.
enum class Dtype : uint8_t {
  kBool = 0,
  kF4 = 1,
  kF6E2M3 = 2,
  kF6E3M2 = 3,
  kU8 = 4,
  kI8 = 5,
  kF8E5M2 = 6,
  kF8E4M3 = 7,
  kF8E8M0 = 8,
  kF8E4M3Fnuz = 9,
  kF8E5M2Fnuz = 10,
  kI16 = 11,
  kU16 = 12,
  kF16 = 13,
  kBF16 = 14,
  kI32 = 15,
  kU32 = 16,
  kF32 = 17,
  kC64 = 18,
  kF64 = 19,
  kI64 = 20,
  kU64 = 21,
};
inline constexpr uint8_t kDtypeCount = 22;

// The format's JSON schema bounds every number by 2^48 - 1.
inline constexpr uint64_t kMaxFormatNumber = (uint64_t{1} << 48) - 1;

// A number from outside is a Dtype only if it is below kDtypeCount: check it before these two.
[[nodiscard]] std::string_view DtypeName(Dtype dtype);
[[nodiscard]] uint32_t DtypeBits(Dtype dtype);  // of one element: 4, 6, 8, 16, 32 or 64

[[nodiscard]] std::optional<Dtype> ParseDtype(std::string_view name);

// Bytes of a dense tensor. Nothing when a dimension or the result is above kMaxFormatNumber, or when sub-byte elements
// do not fill whole bytes.
[[nodiscard]] std::optional<uint64_t> TensorBytes(Dtype dtype, std::span<const uint64_t> shape);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_IMAGE_DTYPE_H_
