#include "client/core/copy/crc32c.h"

#include <array>
#include <cstring>

#include "client/core/copy/crc32c_polynomial.h"
#include "client/core/copy/crc32c_wide.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace ckptd {
namespace {

using namespace crc32c_polynomial;

// Slice by 8: kTables[k][b] is byte b followed by k zero bytes.
using Tables = std::array<std::array<uint32_t, 256>, 8>;
consteval Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = TimesX(crc);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t shorter = tables[k - 1][byte];
      tables[k][byte] = (shorter >> 8) ^ tables[0][shorter & 255];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

uint64_t Load64(const uint8_t* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

uint32_t TableStep(uint32_t crc, uint64_t word) {
  word ^= crc;
  uint32_t next = 0;
  for (size_t i = 0; i < 8; ++i) next ^= kTables[7 - i][(word >> (8 * i)) & 255];
  return next;
}

// The inner functions work on the inverted CRC.
uint32_t TableRun(uint32_t crc, const uint8_t* at, size_t size) {
  for (; size >= 8; at += 8, size -= 8) crc = TableStep(crc, Load64(at));
  for (; size > 0; ++at, --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 255];
  return crc;
}

#if defined(__x86_64__)

bool DetectHardware() { return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"); }

// The instruction has a latency of 3 and a throughput of 1: three independent lanes side by side keep it busy. Lanes of
// a page each also keep three pages coming from memory at once, which one core needs to read at its full speed.
constexpr size_t kLane = 1024;
constexpr size_t kPageLane = 4096;

__attribute__((target("sse4.2,pclmul"))) uint32_t Shift(uint32_t crc, uint64_t factor) {
  __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128(static_cast<int>(crc)),
                                         _mm_cvtsi64_si128(static_cast<long long>(factor)), 0);
  return static_cast<uint32_t>(_mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(product))));
}

// kOne, kTwo: what carries a CRC over one lane, and over two; the CRC instruction reduces.
template <size_t kBytes, uint64_t kOne, uint64_t kTwo>
__attribute__((target("sse4.2,pclmul"))) uint32_t ThreeLanes(uint32_t crc, const uint8_t* at) {
  uint64_t a = crc, b = 0, c = 0;
  for (const uint8_t* end = at + kBytes; at < end; at += 8) {
    a = _mm_crc32_u64(a, Load64(at));
    b = _mm_crc32_u64(b, Load64(at + kBytes));
    c = _mm_crc32_u64(c, Load64(at + 2 * kBytes));
  }
  return Shift(static_cast<uint32_t>(a), kTwo) ^ Shift(static_cast<uint32_t>(b), kOne) ^ static_cast<uint32_t>(c);
}

__attribute__((target("sse4.2,pclmul"))) uint32_t HardwareRun(uint32_t crc, const uint8_t* at, size_t size) {
  for (; size >= 3 * kPageLane; at += 3 * kPageLane, size -= 3 * kPageLane) {
    crc = ThreeLanes<kPageLane, FactorOver(8 * kPageLane), FactorOver(16 * kPageLane)>(crc, at);
  }
  for (; size >= 3 * kLane; at += 3 * kLane, size -= 3 * kLane) {
    crc = ThreeLanes<kLane, FactorOver(8 * kLane), FactorOver(16 * kLane)>(crc, at);
  }
  for (; size >= 8; at += 8, size -= 8) crc = static_cast<uint32_t>(_mm_crc32_u64(crc, Load64(at)));
  for (; size > 0; ++at, --size) crc = _mm_crc32_u8(crc, *at);
  return crc;
}

#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)

bool DetectHardware() { return true; }

uint32_t HardwareRun(uint32_t crc, const uint8_t* at, size_t size) {
  for (; size >= 8; at += 8, size -= 8) crc = __crc32cd(crc, Load64(at));
  for (; size > 0; ++at, --size) crc = __crc32cb(crc, *at);
  return crc;
}

#else

bool DetectHardware() { return false; }

uint32_t HardwareRun(uint32_t crc, const uint8_t* at, size_t size) { return TableRun(crc, at, size); }

#endif

const bool kHardware = DetectHardware();
const bool kWide = crc32c_wide::IsSupported();
constexpr size_t kWideFrom = 1024;  // below, the end of the folding costs more than it gains

}  // namespace

namespace crc32c_internal {

bool HasHardware() { return kHardware; }
bool HasWide() { return kWide; }

uint32_t ByTable(uint32_t crc, const void* data, size_t size) {
  return ~TableRun(~crc, static_cast<const uint8_t*>(data), size);
}

uint32_t ByHardware(uint32_t crc, const void* data, size_t size) {
  return ~HardwareRun(~crc, static_cast<const uint8_t*>(data), size);
}

uint32_t ByWide(uint32_t crc, const void* data, size_t size) {
  const auto* at = static_cast<const uint8_t*>(data);
  const size_t rows = size - size % crc32c_wide::kRow;
  if (rows > 0) crc = ~crc32c_wide::Sum(~crc, at, rows);
  return ByHardware(crc, at + rows, size - rows);
}

}  // namespace crc32c_internal

uint32_t Crc32c(uint32_t crc, const void* data, size_t size) {
  if (kWide && size >= kWideFrom) return crc32c_internal::ByWide(crc, data, size);
  return kHardware ? crc32c_internal::ByHardware(crc, data, size) : crc32c_internal::ByTable(crc, data, size);
}

uint32_t Crc32cCombine(uint32_t crc1, uint32_t crc2, uint64_t size2) {
  // x^(8 * size2), the multiplication by 8 done by starting three squares further: 8 * size2 may not fit.
  uint32_t shift = uint32_t{1} << 31;
  for (size_t k = 3; size2 != 0; ++k, size2 >>= 1) {
    if ((size2 & 1) != 0) shift = Multiply(shift, kSquares[k]);
  }
  return Multiply(shift, crc1) ^ crc2;
}

}  // namespace ckptd
