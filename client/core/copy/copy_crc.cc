#include "client/core/copy/copy_crc.h"

#include <algorithm>
#include <cstring>

#include "client/core/copy/crc32c.h"
#include "client/core/copy/crc32c_wide.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace ckptd {
namespace {

// Three lanes of the checksum; source, block and stack stay in the first-level cache together. Of 3 to 96 KiB the
// fastest, measured.
constexpr size_t kBlock = 3072;

// From here stores go around the cache: the destination is not read first (a third of the traffic less), and the
// trainer's working set stays where it is.
constexpr size_t kStreamFrom = 8 << 10;

uint32_t PlainCopy(uint32_t crc, uint8_t* to, const uint8_t* from, size_t size) {
  while (size > 0) {
    size_t part = std::min(size, kBlock);
    std::memcpy(to, from, part);
    crc = Crc32c(crc, to, part);
    to += part, from += part, size -= part;
  }
  return crc;
}

#if defined(__x86_64__)

void StreamBlock(uint8_t* to, const uint8_t* from) {
  for (size_t i = 0; i < kBlock; i += 64) {
    for (size_t j = i; j < i + 64; j += 16) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + j), _mm_load_si128(reinterpret_cast<const __m128i*>(from + j)));
    }
  }
}

uint32_t StreamCopy(uint32_t crc, uint8_t* to, const uint8_t* from, size_t size) {
  alignas(64) uint8_t block[kBlock];
  size_t head = -reinterpret_cast<uintptr_t>(to) & 15;  // streaming stores want 16-byte alignment
  crc = PlainCopy(crc, to, from, head);
  to += head, from += head, size -= head;
  for (; size >= kBlock; to += kBlock, from += kBlock, size -= kBlock) {
    std::memcpy(block, from, kBlock);
    crc = Crc32c(crc, block, kBlock);
    StreamBlock(to, block);
  }
  _mm_sfence();  // streaming stores are weakly ordered; whoever is told of this copy must see it
  return PlainCopy(crc, to, from, size);
}

#endif

uint32_t WideCopy(uint32_t crc, uint8_t* to, const uint8_t* from, size_t size) {
  const size_t head = -reinterpret_cast<uintptr_t>(to) & 63;
  crc = PlainCopy(crc, to, from, head);
  const size_t rows = (size - head) - (size - head) % crc32c_wide::kRow;
  crc = ~crc32c_wide::Copy(~crc, to + head, from + head, rows);
  return PlainCopy(crc, to + head + rows, from + head + rows, size - head - rows);
}

const bool kWide = crc32c_wide::IsSupported();

}  // namespace

namespace copy_crc_internal {

uint32_t Narrow(uint32_t crc, void* destination, const void* source, size_t size) {
  auto* to = static_cast<uint8_t*>(destination);
  const auto* from = static_cast<const uint8_t*>(source);
#if defined(__x86_64__)
  if (size >= kStreamFrom) return StreamCopy(crc, to, from, size);
#endif
  return PlainCopy(crc, to, from, size);
}

}  // namespace copy_crc_internal

uint32_t CopyCrc32c(uint32_t crc, void* destination, const void* source, size_t size) {
  if (!kWide || size < kStreamFrom) return copy_crc_internal::Narrow(crc, destination, source, size);
  return WideCopy(crc, static_cast<uint8_t*>(destination), static_cast<const uint8_t*>(source), size);
}

}  // namespace ckptd
