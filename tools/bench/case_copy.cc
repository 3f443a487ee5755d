#include <cstring>
#include <vector>

#include "client/core/copy/copy_crc.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "tools/bench/cases.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {

absl::StatusOr<Line> CopyCrc(const Options& options) {
  const uint64_t bytes = options.bytes != 0 ? options.bytes : 512 * kMiB;
  std::vector<char> from(bytes, 'x');
  std::vector<char> to(bytes, 'y');
  uint32_t crc = 0;
  auto gigabytes_per_second = [&](TimePoint begin) { return static_cast<double>(bytes) / 1e9 / SecondsSince(begin); };
  auto ours = [&]() -> absl::StatusOr<double> {
    TimePoint begin = Now();
    crc = CopyCrc32c(crc, to.data(), from.data(), bytes);
    return gigabytes_per_second(begin);
  };
  auto limit = [&]() -> absl::StatusOr<double> {
    TimePoint begin = Now();
    memcpy(to.data(), from.data(), bytes);
    asm volatile("" : : "r"(to.data()) : "memory");  // the copy is wanted, though nobody reads it
    return gigabytes_per_second(begin);
  };
  CKPTD_ASSIGN_OR_RETURN(Comparison found, Alternate(options.RoundsOr(kRounds), ours, limit));
  return Line{"copy.crc", "GB/s", "memcpy", found};
}

}  // namespace ckptd::bench
