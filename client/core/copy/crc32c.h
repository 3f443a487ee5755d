// CRC32C (Castagnoli), the checksum of every chunk. The instruction of the CPU is used where there is one.
//
// Threads: pure functions.
#ifndef CKPTD_CLIENT_CORE_COPY_CRC32C_H_
#define CKPTD_CLIENT_CORE_COPY_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace ckptd {

// The CRC of what `crc` stands for followed by `size` bytes; `crc` is 0 at the start.
// Crc32c(Crc32c(0, a), b) is the CRC of a and b in a row.
[[nodiscard]] uint32_t Crc32c(uint32_t crc, const void* data, size_t size);

// The CRC of two runs in a row from the CRCs of each; `size2` is the length of the second in bytes. Without reading
// them.
[[nodiscard]] uint32_t Crc32cCombine(uint32_t crc1, uint32_t crc2, uint64_t size2);

namespace crc32c_internal {

// The three ways, for tests: all take and give the CRC as Crc32c() does.
[[nodiscard]] bool HasHardware();
[[nodiscard]] bool HasWide();
[[nodiscard]] uint32_t ByTable(uint32_t crc, const void* data, size_t size);
[[nodiscard]] uint32_t ByHardware(uint32_t crc, const void* data, size_t size);  // only if HasHardware()
[[nodiscard]] uint32_t ByWide(uint32_t crc, const void* data, size_t size);      // only if HasWide()

}  // namespace crc32c_internal

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_COPY_CRC32C_H_
