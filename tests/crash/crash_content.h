// What the ranks of the simulated job save: bytes that follow from attempt, step and rank.
#ifndef CKPTD_TESTS_CRASH_CRASH_CONTENT_H_
#define CKPTD_TESTS_CRASH_CRASH_CONTENT_H_

#include <cstdint>

#include "daemon/base/ids.h"
#include "daemon/storage/testing/test_slot.h"

namespace ckptd::crash {

// A job of one rank has two chunks, and two images, so that a chunk spans both; other ranks have one of each.
[[nodiscard]] constexpr uint32_t ImagesPerRank(uint32_t world) { return world == 1 ? 2 : 1; }
// Made once.
[[nodiscard]] TestSlot& SlotOf(const SnapshotId& id, Rank rank, uint32_t world);
[[nodiscard]] uint64_t HashOfImage(const SnapshotId& id, Rank rank, uint32_t world, uint32_t image);

}  // namespace ckptd::crash

#endif  // CKPTD_TESTS_CRASH_CRASH_CONTENT_H_
