// What count_malloc.cc counts, as it lies in the file that it shares with the test.
#ifndef CKPTD_TESTS_INTEGRATION_COUNT_MALLOC_H_
#define CKPTD_TESTS_INTEGRATION_COUNT_MALLOC_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace ckptd::harness {

inline constexpr char kCountMallocVariable[] = "CKPTD_COUNT_MALLOC";
inline constexpr size_t kLargeAllocation = 128 << 10;  // glibc maps such a block anew each time: page faults

struct AllocationCount {
  std::atomic<uint64_t> name;  // the first eight letters of the threads' name; 0 = nobody's
  std::atomic<uint64_t> calls;
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> large;  // of at least kLargeAllocation
  std::atomic<int64_t> alive;   // what it allocated less what it freed, also of other threads
  std::atomic<uint64_t> ns;     // in malloc and its kin, and in free; reading the clock twice for each is in it
};

struct AllocationTable {
  AllocationCount threads[64];
};

}  // namespace ckptd::harness

#endif  // CKPTD_TESTS_INTEGRATION_COUNT_MALLOC_H_
