// Preloaded by hot_path_test into an agent or a trainer: counts what each of its threads allocates, by the thread's
// name, in the file $CKPTD_COUNT_MALLOC that the test maps too (count_malloc.h). Over glibc's own functions, so that
// nothing else changes.
#include "tests/integration/count_malloc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace ckptd::harness {
namespace {

AllocationTable* MapTable() {
  const char* path = getenv(kCountMallocVariable);
  int fd = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* mapped = mmap(nullptr, sizeof(AllocationTable), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return mapped == MAP_FAILED ? nullptr : static_cast<AllocationTable*>(mapped);
}

AllocationTable* table;
[[gnu::constructor]] void Open() { table = MapTable(); }

void Count(size_t bytes) {
  if (table == nullptr) return;
  const int saved = errno;
  uint64_t name[2] = {};
  prctl(PR_GET_NAME, name);
  errno = saved;
  for (AllocationCount& entry : table->threads) {
    uint64_t nobody = 0;
    entry.name.compare_exchange_strong(nobody, name[0]);
    if (entry.name != name[0]) continue;
    ++entry.calls;
    entry.bytes += bytes;
    if (bytes >= kLargeAllocation) ++entry.large;
    return;
  }
}

}  // namespace
}  // namespace ckptd::harness

extern "C" {
void* malloc(size_t bytes) {
  ckptd::harness::Count(bytes);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  ckptd::harness::Count(count * bytes);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  ckptd::harness::Count(bytes);
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  ckptd::harness::Count(bytes);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}
