// The life of one rank's slots on this agent (protocol.md, section 4, "Slot").
//
// One Machine per (job, rank). It owns the private truth about the slots while the agent lives; the ctl file is its
// journal. It is driven by events only and never asks for anything: see events.h for who does what.
//
//   FREE ──lend──► FILLING ──COMPLETE, live──► SEALED ──dead──► FREE          TRANSITIONS.md is the whole table,
//     │               ├─────COMPLETE, stale or bad──────────────► FREE         printed from table.cc by the test
//     │               ├─────ABANDONED and acknowledged or reaped► FREE
//     │               └─────ABANDONED, writer may wake──────────► RETIRED ──fresh file, or writer gone──► FREE
//     └─fetch──► LOADING ──read and checked──► SEALED ──bad CRC──► QUARANTINED ──► FREE
//
// Four rules carry the safety; each is a switch in Rules that only tests turn off:
//   * A slot is sealed only from COMPLETE, with a full CRC list, for the highest attempt seen and a step at or above
//     the floor G. COMPLETE means that no thread of the writer writes any more.
//   * A slot is reused only when its last writer said COMPLETE, or acknowledged the end of its epoch after ABANDONED,
//     or is reaped. A mapping cannot be revoked: a stopped process that wakes writes into what it has mapped. Until
//     then the file is retired, and the index gets a fresh one.
//   * A sealed slot is freed only when the decision of the highest attempt seen is known, it is not the job-wide
//     watermark W, not a live step (attempt = seen, step >= G), and nobody reads or flushes it. Between the STATE of a
//     new attempt and its decision nothing is freed: this freeze is what the coordinator's choice stands on.
//   * W and G only grow within an attempt, and are forgotten with it. W starts as the parent. Until then, what was W
//     before may still be flushed, when somebody asks for the newest: a part on storage says nothing of the choice.
//
// At most one fill per rank: the agent lends one free slot for the first save at or above G, so that a save needs no
// round trip. Flushing starts at the seal and is given up only for snapshots that can no longer become captured.
//
// A new layout stands beside the old one. Grants come from the layout the trainer chose; slots of other layouts are
// kept until a snapshot of the chosen layout is the job-wide watermark, then removed as they become free.
//
// When memory does not hold both, the layouts before give up every slot that is FREE or becomes it (RoomNeeded): by the
// freeing rule above that leaves W and what is newer, in the end one slot. It never gets a second one again. The same
// for another rank of the job, once this one has chosen a new layout (OthersNeedRoom). A rank that has left this node
// (no process here, and the newest decision gives it to another agent) chooses no layout any more: all of its layouts
// are old ones.
//
// Not thread-safe; one thread feeds it. Steps cost O(slots).
#ifndef CKPTD_DAEMON_SNAPSHOT_MACHINE_H_
#define CKPTD_DAEMON_SNAPSHOT_MACHINE_H_

#include <memory>
#include <string>
#include <vector>

#include "daemon/snapshot/events.h"

namespace ckptd::snapshot {

// Switches for tests: each false removes one protection, and the simulation must notice.
struct Rules {
  bool seal_only_complete = true;     // I2
  bool reuse_after_ack = true;        // I2
  bool free_below_watermark = true;   // I3: W and live steps stay
  bool watermark_is_parent = true;    // I3
  bool freeze_until_decision = true;  // I3
  bool drop_below_floor = true;       // I5: G frees dropped steps
  bool attempt_in_identity = true;    // I1
  bool only_decided_tickets = true;   // I1
  bool gone_when_reaped = true;       // defence
  bool keep_protected = true;         // I9
  bool refuse_old_owner = true;       // defence
  bool refuse_old_state = true;       // defence
};

struct Config {
  std::string job;
  Rank rank = 0;
  Rules rules;
  std::string agent;  // this one, as decisions name it
};

// A copy for StatusView.
struct SlotView {
  SlotId id;
  SlotStateCode state = SlotStateCode::kFree;
  Epoch epoch = 0;
  SnapshotId snapshot;     // SEALED, QUARANTINED, LOADING; FILLING: step 0 = lent, not used yet
  bool captured = false;   // on every rank
  bool persisted = false;  // this rank's part is on storage
  bool flushing = false;
  int read_pins = 0;
};
struct View {
  AttemptId seen = 0;
  AttemptId running = 0;  // attempt of the attached process after GO
  Ticket ticket = 0;
  ProcessId process = 0;
  v1::RankReport::Load load = v1::RankReport::NONE;
  uint32_t layout = 0;          // grants come from it
  bool left = false;            // the rank is another agent's now, and nobody here will save into its layouts
  bool decided = false;         // attempt `seen`
  SnapshotId watermark;         // none until then
  SnapshotId newest;            // on all ranks as far as was told: W; until `decided`, that of the attempt before
  bool newest_durable = false;  // and known to be committed
  StepId floor = 0;
  StepId pos = 0;
  SnapshotId durable;
  SnapshotId protected_;
  bool protected_now = false;
  AttemptId fenced_by = 0;
  bool owes_flush = false;  // draining, and the newest snapshot is not on storage, or one is still being checked
  bool lent = false;        // a save now would find a grant
  bool reading = false;     // what restore() is to load comes from other agents or the storage just now
  std::string last_error;
  std::vector<SlotView> slots;
};

class Machine {
 public:
  explicit Machine(Config config);
  ~Machine();
  Machine(Machine&&) noexcept;
  Machine& operator=(Machine&&) noexcept;

  // Appends to `effects`.
  void Step(const Event& event, Effects& effects);

  [[nodiscard]] View view() const;
  // What is captured is flushed from the first chunk on; else only what the coordinator chooses later.
  [[nodiscard]] bool flushes_all() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ckptd::snapshot

#endif  // CKPTD_DAEMON_SNAPSHOT_MACHINE_H_
