// Where files are mapped so that huge pages among theirs are mapped as such: a 2 MiB entry instead of 512, no fault for
// each 4 KiB. The kernel does so only where address and offset in the file agree; it looks for such a place itself only
// on a tmpfs that is mounted for huge pages.
#ifndef CKPTD_CLIENT_CORE_WIRE_HUGE_PAGES_H_
#define CKPTD_CLIENT_CORE_WIRE_HUGE_PAGES_H_

#include <cstdint>

namespace ckptd {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

// A hint for mmap: the beginning of a huge page with `bytes` of room, free a moment ago. Null below one huge page.
[[nodiscard]] void* PlaceForHugePages(uint64_t bytes);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_WIRE_HUGE_PAGES_H_
