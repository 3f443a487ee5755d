#include "daemon/os/heap.h"

#include <malloc.h>

#include <cstdlib>
#include <cstring>

namespace ckptd {
namespace {

constexpr int kKept = 4 << 20;        // free memory above this goes back to the system
constexpr int kOwnMapping = 1 << 20;  // blocks from this size on are mapped and unmapped each time
constexpr size_t kReserve = 512 << 10;

}  // namespace

void ShareHeap() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_TRIM_THRESHOLD, kKept);
  mallopt(M_MMAP_THRESHOLD, kOwnMapping);
}

void ReserveHeap() {
  void* reserve = std::malloc(kReserve);
  if (reserve == nullptr) return;
  explicit_bzero(reserve, kReserve);  // touches it; a memset before free would be left out
  std::free(reserve);
}

}  // namespace ckptd
