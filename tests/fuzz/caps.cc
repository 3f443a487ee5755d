#include "tests/fuzz/caps.h"

#include <malloc.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <new>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CKPTD_SANITIZER_ALLOCATES 1
#include <sanitizer/allocator_interface.h>
#endif
#endif

namespace ckptd::fuzz {
namespace {

constexpr time_t kSeconds = 2;  // of CPU time: a machine that is busy with other things makes no finding

thread_local bool counting = false;
thread_local int64_t live = 0;  // below 0 where an input frees what was there before
thread_local int64_t limit = 0;

// Nothing here may allocate.
void Say(const char* text) { (void)!write(STDERR_FILENO, text, std::strlen(text)); }

void Allocated(size_t bytes) {
  if (!counting) return;
  live += static_cast<int64_t>(bytes);
  if (live <= limit) return;
  counting = false;
  char text[160];
  (void)std::snprintf(text, sizeof(text), "over-allocation: %lld bytes at once, allowed for this input are %lld\n",
                      static_cast<long long>(live), static_cast<long long>(limit));
  Say(text);
  std::abort();
}

void Freed(size_t bytes) {
  if (counting) live -= static_cast<int64_t>(bytes);
}

void OnTime(int /*signal*/) {
  Say("slow: more than 2 s of CPU time for one input\n");
  std::abort();
}

void SetTimer(time_t seconds) {
  const itimerval timer = {{0, 0}, {seconds, 0}};
  if (setitimer(ITIMER_PROF, &timer, nullptr) != 0) std::abort();
}

#ifdef CKPTD_SANITIZER_ALLOCATES
void OnMalloc(const volatile void* /*memory*/, size_t bytes) { Allocated(bytes); }
void OnFree(const volatile void* memory) {
  if (counting) Freed(__sanitizer_get_allocated_size(memory));
}
void InstallHooks() {
  if (__sanitizer_install_malloc_and_free_hooks(OnMalloc, OnFree) == 0) std::abort();
}
#else
void InstallHooks() {}  // operator new below
#endif

}  // namespace

void RunCapped(Input input) {
  static const bool installed = [] {
    InstallHooks();
    return std::signal(SIGPROF, OnTime) != SIG_ERR;
  }();
  if (!installed) std::abort();
  SetTimer(kSeconds);
  live = 0;
  limit = static_cast<int64_t>(kAllowed.bytes + kAllowed.per_byte * input.size());
  counting = true;
  Run(input);
  counting = false;
  SetTimer(0);
}

Uncounted::Uncounted() { counting = false; }
Uncounted::~Uncounted() { counting = true; }

}  // namespace ckptd::fuzz

#ifndef CKPTD_SANITIZER_ALLOCATES
namespace {

void* Counted(size_t bytes) {
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) std::abort();
  ckptd::fuzz::Allocated(malloc_usable_size(memory));
  return memory;
}

void Release(void* memory) {
  if (memory != nullptr) ckptd::fuzz::Freed(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) { return Counted(bytes); }
void* operator new[](size_t bytes) { return Counted(bytes); }
void operator delete(void* memory) noexcept { Release(memory); }
void operator delete[](void* memory) noexcept { Release(memory); }
void operator delete(void* memory, size_t /*bytes*/) noexcept { Release(memory); }
void operator delete[](void* memory, size_t /*bytes*/) noexcept { Release(memory); }
#endif
