// Allocations of libckpt's own threads ("ckpt-..."), for the unit tests: counted, and made to fail. The operators new
// and delete of the test's program are replaced for it, except in sanitized builds.
#ifndef CKPTD_CLIENT_SRC_TEST_ALLOCATIONS_H_
#define CKPTD_CLIENT_SRC_TEST_ALLOCATIONS_H_

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CKPTD_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CKPTD_SANITIZED 1
#endif
#endif

namespace ckptd {

#ifdef CKPTD_SANITIZED
inline constexpr bool kAllocationsAreSeen = false;
#else
inline constexpr bool kAllocationsAreSeen = true;
#endif

[[nodiscard]] uint64_t LibraryAllocations();  // so far

// The next allocation of a thread with this name throws std::bad_alloc, once. null: none does.
void FailAllocationOf(const char* thread);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_TEST_ALLOCATIONS_H_
