#include "client/core/copy/fill_check.h"

#include "client/core/copy/crc32c.h"

namespace ckptd {

FillCheck::FillCheck(uint64_t epoch, uint64_t step, uint64_t attempt) {
  const uint64_t identity[] = {epoch, step, attempt};
  crc_ = Crc32c(0, identity, sizeof identity);
}

void FillCheck::Add(uint32_t chunk_crc) { crc_ = Crc32c(crc_, &chunk_crc, sizeof chunk_crc); }

}  // namespace ckptd
