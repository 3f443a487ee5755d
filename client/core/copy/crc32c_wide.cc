#include "client/core/copy/crc32c_wide.h"

#include "client/core/copy/crc32c_polynomial.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ckptd::crc32c_wide {

#if defined(__x86_64__)

namespace {

using crc32c_polynomial::FactorOver;

#define CKPTD_WIDE __attribute__((target("avx512f,vpclmulqdq,sse4.2")))
#define CKPTD_WIDE_INLINE __attribute__((always_inline, target("avx512f,vpclmulqdq,sse4.2"))) inline

struct Row {
  __m512i a, b, c, d;
};

// For each 128 bits: their first half is 64 bits further from the end.
template <uint64_t kBits>
CKPTD_WIDE_INLINE __m512i Factors() {
  constexpr auto kFirst = static_cast<long long>(FactorOver(kBits + 64));
  constexpr auto kSecond = static_cast<long long>(FactorOver(kBits));
  return _mm512_set4_epi64(kSecond, kFirst, kSecond, kFirst);
}

// `sum` carried over the bits of `factors`, plus what follows.
CKPTD_WIDE_INLINE __m512i Fold(__m512i sum, __m512i factors, __m512i next) {
  constexpr int kXorOfThree = 0x96;
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, factors, 0x00),
                                   _mm512_clmulepi64_epi128(sum, factors, 0x11), next, kXorOfThree);
}

CKPTD_WIDE_INLINE Row Load(const uint8_t* from) {
  return {_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64), _mm512_loadu_si512(from + 128),
          _mm512_loadu_si512(from + 192)};
}

CKPTD_WIDE_INLINE void Stream(uint8_t* to, const Row& row) {
  auto* lines = reinterpret_cast<__m512i*>(to);
  _mm512_stream_si512(lines, row.a);
  _mm512_stream_si512(lines + 1, row.b);
  _mm512_stream_si512(lines + 2, row.c);
  _mm512_stream_si512(lines + 3, row.d);
}

CKPTD_WIDE_INLINE void FoldRow(Row& sum, __m512i factors, const Row& next) {
  sum.a = Fold(sum.a, factors, next.a);
  sum.b = Fold(sum.b, factors, next.b);
  sum.c = Fold(sum.c, factors, next.c);
  sum.d = Fold(sum.d, factors, next.d);
}

CKPTD_WIDE_INLINE void Begin(Row& first, uint32_t crc) {
  first.a = _mm512_xor_si512(first.a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
}

// A row into its last 64 bytes, and those by the CRC instruction.
CKPTD_WIDE_INLINE uint32_t Reduce(const Row& row) {
  __m512i last = Fold(row.a, Factors<3 * 512>(), row.d);
  last = Fold(row.b, Factors<2 * 512>(), last);
  last = Fold(row.c, Factors<512>(), last);
  alignas(64) uint64_t words[8];
  _mm512_store_si512(words, last);
  uint64_t crc = 0;
  for (uint64_t word : words) crc = _mm_crc32_u64(crc, word);
  return static_cast<uint32_t>(crc);
}

}  // namespace

bool IsSupported() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("sse4.2");
}

CKPTD_WIDE uint32_t Sum(uint32_t crc, const uint8_t* from, size_t size) {
  const __m512i factors = Factors<8 * kRow>();
  Row sum = Load(from);
  Begin(sum, crc);
  for (size_t at = kRow; at < size; at += kRow) FoldRow(sum, factors, Load(from + at));
  return Reduce(sum);
}

CKPTD_WIDE uint32_t Copy(uint32_t crc, uint8_t* to, const uint8_t* from, size_t size) {
  const __m512i factors = Factors<8 * kRow>();
  Row sum = Load(from);
  Stream(to, sum);
  Begin(sum, crc);
  for (size_t at = kRow; at < size; at += kRow) {
    const Row next = Load(from + at);
    Stream(to + at, next);
    FoldRow(sum, factors, next);
  }
  _mm_sfence();  // streaming stores are weakly ordered
  return Reduce(sum);
}

#else

bool IsSupported() { return false; }
uint32_t Sum(uint32_t crc, const uint8_t* /*from*/, size_t /*size*/) { return crc; }
uint32_t Copy(uint32_t crc, uint8_t* /*to*/, const uint8_t* /*from*/, size_t /*size*/) { return crc; }

#endif

}  // namespace ckptd::crc32c_wide
