// The check of a fill (proto/local/bell.h): CRC32C over epoch, step and attempt (u64 each, little-endian) and the
// checksums of all chunks in order (u32). Trainer and agent compute it alike. No memory of its own; any thread.
#ifndef CKPTD_CLIENT_CORE_COPY_FILL_CHECK_H_
#define CKPTD_CLIENT_CORE_COPY_FILL_CHECK_H_

#include <cstdint>

namespace ckptd {

class FillCheck {
 public:
  FillCheck(uint64_t epoch, uint64_t step, uint64_t attempt);

  void Add(uint32_t chunk_crc);
  [[nodiscard]] uint32_t value() const { return crc_; }

 private:
  uint32_t crc_;
};

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_COPY_FILL_CHECK_H_
