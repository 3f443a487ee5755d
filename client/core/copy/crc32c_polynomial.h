// The arithmetic behind CRC32C, for tables and factors that are made by the compiler.
#ifndef CKPTD_CLIENT_CORE_COPY_CRC32C_POLYNOMIAL_H_
#define CKPTD_CLIENT_CORE_COPY_CRC32C_POLYNOMIAL_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace ckptd::crc32c_polynomial {

// A CRC is a polynomial over GF(2) modulo P, written with its highest bit first: bit 31 is the coefficient of x^0.
inline constexpr uint32_t kPolynomial = 0x82F63B78;

constexpr uint32_t TimesX(uint32_t a) { return (a >> 1) ^ ((a & 1) != 0 ? kPolynomial : 0); }

constexpr uint32_t Multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = uint32_t{1} << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = TimesX(b);
  }
  return product;
}

// x^(2^k) for each k: 64 bits of a length in bytes, and three more for bits.
consteval std::array<uint32_t, 67> MakeSquares() {
  std::array<uint32_t, 67> squares{};
  squares[0] = uint32_t{1} << 30;  // x
  for (size_t k = 1; k < squares.size(); ++k) squares[k] = Multiply(squares[k - 1], squares[k - 1]);
  return squares;
}
inline constexpr std::array<uint32_t, 67> kSquares = MakeSquares();

constexpr uint32_t PowerOfX(uint64_t exponent) {
  uint32_t power = uint32_t{1} << 31;  // 1
  for (size_t k = 0; exponent != 0; ++k, exponent >>= 1) {
    if ((exponent & 1) != 0) power = Multiply(power, kSquares[k]);
  }
  return power;
}

// What carries 64 bits of a CRC's polynomial over `bits` bits that follow them, by a carry-less product: that is one
// power of x too high in 128 bits, and a factor of 32 bits is 32 powers away from one of 64.
constexpr uint64_t FactorOver(uint64_t bits) { return PowerOfX(bits - 33); }

}  // namespace ckptd::crc32c_polynomial

#endif  // CKPTD_CLIENT_CORE_COPY_CRC32C_POLYNOMIAL_H_
