// Taking over what a predecessor left: the rules, and the list for the lifecycle machines.
//
//   found                                              becomes
//   SEALED or QUARANTINED, record checked, file whole  the same; unverified until its chunks were read (verify.h)
//   SEALED or QUARANTINED, record damaged, file whole  FREE: no kill makes such a record, and nothing tells what it was
//   FILLING, file whole                                FILLING with its owner: settled by the bell, or by reaping
//   FILLING without an owner, file whole               RETIRED: the word is damaged
//   RETIRED, or an unknown state, file whole           RETIRED with its owner
//   FREE, LOADING, PREPARING, file whole               FREE
//   any state, file missing or cut by the trainer      RETIRED, without owner or file: StartReplace gives it a new file
//   debris (scan.h)                                    removed
//   a job file that fails its check                    made again, `seen` = the highest attempt in the slots
//   a snapshot, or a slot or file that may have been   gone, and `lost` in the job file says up to which attempt the
//   one, in one of these rows                          absence of a part proves nothing (job_journal.h)
//   a file that cannot be read (no descriptor, EIO)    no start: an error that names it. Nothing was removed by then
//   a newer region major                               untouched, reported; its job or rank is refused (NEWER_VERSION)
//
// Flags are kept but for VERIFIED. The grant is revoked: nothing is granted before the state of `seen` is known again.
#ifndef CKPTD_DAEMON_REGION_ADOPT_H_
#define CKPTD_DAEMON_REGION_ADOPT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "daemon/region/scan.h"

namespace ckptd::region {

struct AdoptedLayout {
  uint32_t layout = 0;
  uint32_t header_crc = 0;
  uint32_t world = 0;
  uint64_t slot_bytes = 0;
  std::vector<SlotSnapshot> slots;  // after the rules above
};

struct AdoptedRank {
  Rank rank = 0;
  std::vector<AdoptedLayout> layouts;
};

struct AdoptedJob {
  std::string job;
  uint32_t uid = 0;
  AttemptId seen = 0;
  AttemptId lost = 0;  // see job_journal.h
  std::vector<AdoptedRank> ranks;
};

struct AdoptReport {
  std::vector<AdoptedJob> jobs;
  std::vector<std::string> untouched;  // directories of a newer major
  std::vector<std::string> notes;      // sentences: what was given up or removed, and why
};

// The rule for one slot: what it becomes. Pure.
[[nodiscard]] SlotSnapshot AdoptedState(const ScannedSlot& scanned);

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_ADOPT_H_
