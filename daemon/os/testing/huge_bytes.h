// How much this process has mapped as huge pages of shared memory. For tests.
#ifndef CKPTD_DAEMON_OS_TESTING_HUGE_BYTES_H_
#define CKPTD_DAEMON_OS_TESTING_HUGE_BYTES_H_

#include <cstdint>
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

}  // namespace ckptd

#endif  // CKPTD_DAEMON_OS_TESTING_HUGE_BYTES_H_
