// Huge pages of shared memory: whether this kernel makes any, and how much this process has mapped of them. For tests.
#ifndef CKPTD_DAEMON_OS_TESTING_HUGE_BYTES_H_
#define CKPTD_DAEMON_OS_TESTING_HUGE_BYTES_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

namespace ckptd {

inline uint64_t HugeBytesMapped() {
  constexpr char kName[] = "ShmemPmdMapped:";
  std::ifstream smaps("/proc/self/smaps_rollup");
  std::string name;
  uint64_t kib = 0;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream words(line);
    if (words >> name >> kib && name == kName) return kib << 10;
  }
  return 0;
}

// Asked of the kernel itself, with pages that are all there: a test that skips where this is false still fails where
// our own code makes none.
inline bool KernelMakesHugePages() {
  constexpr size_t kHuge = size_t{2} << 20;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, Linux 6.1
  const int fd = memfd_create("probe", MFD_CLOEXEC);
  void* room = mmap(nullptr, 2 * kHuge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char* begin = static_cast<char*>(room) + (kHuge - reinterpret_cast<uintptr_t>(room) % kHuge) % kHuge;
  bool makes = fd >= 0 && room != MAP_FAILED && ftruncate(fd, kHuge) == 0 &&
               mmap(begin, kHuge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
  if (makes) std::memset(begin, 1, kHuge);
  makes = makes && madvise(begin, kHuge, kCollapse) == 0;
  if (room != MAP_FAILED) munmap(room, 2 * kHuge);
  if (fd >= 0) close(fd);
  return makes;
}

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_TESTING_HUGE_BYTES_H_
