// Copying with the checksum in the same pass: the bytes are in registers or the first-level cache when the checksum is
// taken, so it costs next to nothing, where a second pass over memory costs half of the speed.
//
// The checksum is always of the bytes that were stored, even when the source changes meanwhile.
//
// Threads: any; nobody else may write the destination meanwhile.
#ifndef CKPTD_CLIENT_CORE_COPY_COPY_CRC_H_
#define CKPTD_CLIENT_CORE_COPY_COPY_CRC_H_

#include <cstddef>
#include <cstdint>

namespace ckptd {

// Copies and gives Crc32c(crc, the bytes). The two must not overlap. The source must stay mapped: freed memory is
// SIGSEGV. Large copies go around the cache: the trainer's working set stays where it is.
[[nodiscard]] uint32_t CopyCrc32c(uint32_t crc, void* destination, const void* source, size_t size);

namespace copy_crc_internal {

// Without the wide instructions (crc32c_wide.h), for tests.
[[nodiscard]] uint32_t Narrow(uint32_t crc, void* destination, const void* source, size_t size);

}  // namespace copy_crc_internal

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_COPY_COPY_CRC_H_
