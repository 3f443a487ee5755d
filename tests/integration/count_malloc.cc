// Preloaded by hot_path_test into an agent or a trainer: counts what each of its threads allocates and how long that
// takes, by the thread's name, in the file $CKPTD_COUNT_MALLOC that the test maps too (count_malloc.h). Over glibc's
// own functions, so that nothing else changes.
#include "tests/integration/count_malloc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the C library's own names
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void* memory);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

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

AllocationCount* Entry() {
  const int saved = errno;
  uint64_t name[2] = {};
  prctl(PR_GET_NAME, name);
  errno = saved;
  for (AllocationCount& entry : table->threads) {
    uint64_t nobody = 0;
    entry.name.compare_exchange_strong(nobody, name[0]);
    if (entry.name == name[0]) return &entry;
  }
  return nullptr;
}

uint64_t Now() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

// `made`: 0 when what there was goes on under another address.
template <typename Allocate>
void* Counted(size_t bytes, Allocate allocate, int made = 1) {
  if (table == nullptr) return allocate();
  const uint64_t begin = Now();
  void* memory = allocate();
  const uint64_t end = Now();
  if (AllocationCount* entry = Entry()) {
    ++entry->calls;
    entry->alive += made;
    entry->bytes += bytes;
    entry->ns += end - begin;
    if (bytes >= kLargeAllocation) ++entry->large;
  }
  return memory;
}

void Free(void* memory) {
  if (table == nullptr || memory == nullptr) return __libc_free(memory);
  const uint64_t begin = Now();
  __libc_free(memory);
  const uint64_t end = Now();
  if (AllocationCount* entry = Entry()) {
    --entry->alive;
    entry->ns += end - begin;
  }
}

}  // namespace
}  // namespace ckptd::harness

#pragma GCC visibility push(default)
extern "C" {
void* malloc(size_t bytes) {
  return ckptd::harness::Counted(bytes, [=] { return __libc_malloc(bytes); });
}
void* calloc(size_t count, size_t bytes) {
  return ckptd::harness::Counted(count * bytes, [=] { return __libc_calloc(count, bytes); });
}
void* realloc(void* memory, size_t bytes) {
  return ckptd::harness::Counted(
      bytes, [=] { return __libc_realloc(memory, bytes); }, memory == nullptr ? 1 : 0);
}
void* memalign(size_t alignment, size_t bytes) {  // NOLINT(readability-identifier-naming)
  return ckptd::harness::Counted(bytes, [=] { return __libc_memalign(alignment, bytes); });
}
void free(void* memory) { ckptd::harness::Free(memory); }
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  *memory = memalign(alignment, bytes);
  return *memory == nullptr ? ENOMEM : 0;
}
}
#pragma GCC visibility pop
