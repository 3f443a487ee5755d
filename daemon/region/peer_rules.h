// Which slot a copy of another node's snapshot may take: the rules, without any I/O. Pure functions, any thread.
//
// A rank's copies have two slots. What protects the last good step is the whole job's matter, not one rank's: rank 1's
// copy of step 20 is worth nothing when rank 2's newest is of step 10. So the slot rule of the job protocol holds here
// too, with one mark more. A complete copy stays
//
//   while nothing is known of the attempt (floor 0: its decision may still choose this step)
//   when it is the step that all ranks copy now (W when it was chosen), or protected on all ranks last
//   when it is of the current attempt and at or above the floor G: it may yet become one of these two
//   when it is this rank's newest, unless one of these two is complete here as well
//
// and any other may be given up for a newer one. A slot that somebody reads or writes is never taken. When no slot is
// left the new copy has to wait (BUSY): W and the protected step rise as other ranks complete theirs.
//
// What arrives is ordered by (attempt, step). An order of an attempt below the highest seen is FENCED; a step older
// than what is complete here is SUPERSEDED, but for the two marked ones: after a roll-back W is older than what is
// here. One copy of a rank is on its way at a time, and the newest order wins, but for what all ranks copy now: it goes
// before a newer one whose turn has not come, which may be of a capture that is never sealed.
#ifndef CKPTD_DAEMON_REGION_PEER_RULES_H_
#define CKPTD_DAEMON_REGION_PEER_RULES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "proto/local/region.h"

namespace ckptd::region {

// What the job protocol's STATE says of a job.
struct PeerMarks {
  AttemptId attempt = 0;  // highest seen
  SnapshotId protected_;  // newest whose copies are complete for all ranks, as the coordinator knows; or none
  SnapshotId captured;    // what all ranks copy now (State.protecting): W when it was chosen; or none
  StepId floor = 0;       // G, at least 1 once the attempt's decision is known
  bool operator==(const PeerMarks&) const = default;
};

// Takes over what is news: all of a higher attempt, the maxima of the same one. FENCED when `told` is of a lower one.
[[nodiscard]] absl::Status Advance(PeerMarks& marks, const PeerMarks& told);

// Whether the complete copy `id` may be given up. `complete`: all that this rank has, `id` among them.
[[nodiscard]] bool MayGo(const SnapshotId& id, std::span<const SnapshotId> complete, const PeerMarks& marks);

// Whether nobody waits for the complete copy `id` any more: a newer step is protected, or `durable` on storage. Where
// memory is short such a copy may be given up, though it is this rank's newest.
[[nodiscard]] bool IsOver(const SnapshotId& id, const PeerMarks& marks, const SnapshotId& durable);

// Whether a copy of `id` is wanted at all. FENCED, SUPERSEDED, BELOW_FLOOR, REFUSED when it is complete already, or
// INVALID_ARGUMENT when it is of an attempt that the marks do not know.
[[nodiscard]] absl::Status CheckWanted(const SnapshotId& id, std::span<const SnapshotId> complete,
                                       const PeerMarks& marks);

// Whether an order of `id` takes the place of the copy of `filling` that is on its way; otherwise it is SUPERSEDED.
[[nodiscard]] bool Overtakes(const SnapshotId& id, const SnapshotId& filling, const PeerMarks& marks);

// One slot of the layout that the copy is to be in.
struct PeerSlotFacts {
  SlotStateCode state = SlotStateCode::kFree;
  SnapshotId id;      // of kSealed
  bool held = false;  // somebody reads or writes it
};

// The slot to take: one that is not SEALED (whatever else a predecessor's kill or damage left of it: no process but the
// agent ever writes here), else the oldest that may go. BUSY when there is none. All slots have whole files.
[[nodiscard]] absl::StatusOr<uint32_t> ChooseSlot(std::span<const PeerSlotFacts> slots,
                                                  std::span<const SnapshotId> complete, const PeerMarks& marks);

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_PEER_RULES_H_
