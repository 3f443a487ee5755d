#include "client/src/test_allocations.h"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace ckptd {
namespace {

std::atomic<uint64_t> allocations{0};
std::atomic<const char*> doomed{nullptr};

bool StartsThreadName(const char* prefix) {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return strncmp(name, prefix, strlen(prefix)) == 0;
}

[[maybe_unused]] void NoteAllocation() {
  thread_local int is_library = -1;
  if (is_library < 0) is_library = StartsThreadName("ckpt-") ? 1 : 0;
  if (is_library == 1) allocations += 1;
  const char* name = doomed;
  if (name == nullptr || !StartsThreadName(name) || !doomed.compare_exchange_strong(name, nullptr)) return;
  throw std::bad_alloc();
}

}  // namespace

uint64_t LibraryAllocations() { return allocations; }

void FailAllocationOf(const char* thread) { doomed = thread; }

}  // namespace ckptd

#ifndef CKPTD_SANITIZED

void* operator new(size_t bytes) {
  ckptd::NoteAllocation();
  void* memory = malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }

#endif
