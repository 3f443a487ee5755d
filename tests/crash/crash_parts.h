// One exploration on several cores: a process for each part, which says what it found through a pipe.
#ifndef CKPTD_TESTS_CRASH_CRASH_PARTS_H_
#define CKPTD_TESTS_CRASH_CRASH_PARTS_H_

#include <functional>

#include "tests/crash/crash_explore.h"

namespace ckptd::crash {

// The sum of what `explore(part)` gave in each of `parts` processes; the first violation is that of the lowest part. A
// process that dies is a violation.
[[nodiscard]] Tally ExploreInParts(uint64_t parts, const std::function<Tally(uint64_t part)>& explore);

}  // namespace ckptd::crash

#endif  // CKPTD_TESTS_CRASH_CRASH_PARTS_H_
