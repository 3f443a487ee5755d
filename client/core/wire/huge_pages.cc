#include "client/core/wire/huge_pages.h"

#include <sys/mman.h>

namespace ckptd {

void* PlaceForHugePages(uint64_t bytes) {
  if (bytes < kHugePage || bytes > UINT64_MAX - kHugePage) return nullptr;
  void* found = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  munmap(found, bytes + kHugePage);
  const uint64_t skip = (kHugePage - reinterpret_cast<uintptr_t>(found) % kHugePage) % kHugePage;
  return static_cast<char*>(found) + skip;
}

}  // namespace ckptd
