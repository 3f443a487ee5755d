// What happens to the slots of one rank on this agent (events), and what has to be done about it (effects).
//
// Plain values: no I/O, no clock, no threads. The executor (room app) feeds events in the order it learned them and
// carries out the effects of one Step() in their order, all of them, before the next Step(). Effects that touch shared
// memory (marked [region]) are synchronous and cannot fail but by a broken machine; effects marked [async] are only
// started, and their result comes back as the event named beside them. A message that leaves the agent (Send…,
// ReportChanged) therefore never tells of a state that the region does not hold yet.
#ifndef CKPTD_DAEMON_SNAPSHOT_EVENTS_H_
#define CKPTD_DAEMON_SNAPSHOT_EVENTS_H_

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "proto/ckptd/v1/job.pb.h"
#include "proto/local/bell.h"
#include "proto/local/messages.h"
#include "proto/local/region.h"

namespace ckptd::snapshot {

using StatePtr = std::shared_ptr<const v1::State>;
using RankReportPtr = std::shared_ptr<const v1::RankReport>;

// Never reused by another process and the same for this one after a restart of the agent, e.g. start time << 22 | pid.
// 0 = nobody.
using ProcessId = uint64_t;

// Slot `index` of ctl.<layout>. Its file may be replaced; the name stays.
struct SlotId {
  uint32_t layout = 0;
  uint32_t index = 0;
  auto operator<=>(const SlotId&) const = default;
};

// Who may write a slot while it is FILLING.
struct Owner {
  AttemptId attempt = 0;
  Ticket ticket = 0;
  ProcessId process = 0;
  bool operator==(const Owner&) const = default;
};

// kReplica: another agent, by a copy or from its own slots. kParity: rebuilt from what other agents have.
enum class Source : uint8_t { kNone, kRegion, kStorage, kRescued, kReplica, kParity };

// Neither this agent's slots nor its owner's.
[[nodiscard]] constexpr bool IsFetched(Source source) {
  return source == Source::kStorage || source == Source::kReplica || source == Source::kParity;
}

// Who has the parent of a rank whose agent does not: agents, the best one first, or what it can be rebuilt from. None
// of both: it is on storage only.
struct Sources {
  std::vector<std::string> agents;
  std::shared_ptr<const v1::ParitySources> parity;  // null: none
  [[nodiscard]] bool empty() const { return agents.empty() && parity == nullptr; }
};

// ---------------------------------------------------------------------------------------------------------- events

// First event after a start of the agent that found this rank's slots in the region: SEALED records (their CRC is
// good), FILLING with their owner from the ctl file, FREE, QUARANTINED, RETIRED. LOADING and PREPARING come as FREE.
struct AdoptedSlot {
  SlotId id;
  SlotStateCode state = SlotStateCode::kFree;
  Epoch epoch = 0;
  Owner owner;          // of FILLING and RETIRED
  SnapshotId snapshot;  // of SEALED and QUARANTINED
  bool persisted = false;
  bool rescued = false;
  bool unchecked = false;  // SEALED: its chunks are being checked; Checked or DamageFound follows
};
struct Adopted {
  AttemptId seen = 0;  // from the job journal
  std::vector<AdoptedSlot> slots;
};

// The region holds a further layout: `count` FREE slots with indices 0..count-1. Adding a known layout is ignored.
struct LayoutAdded {
  uint32_t layout = 0;
  uint32_t count = 0;
};

// Room session answered LAYOUT or RESUME of this process with LAYOUT_READY: it holds the descriptors of `layout`, and
// its bell is `bell` = the process. Grants come from this layout from now on.
struct LayoutChosen {
  ProcessId process = 0;
  uint32_t layout = 0;
};

// A new layout needs memory that the layouts known now hold: nothing is lent from them any more, a grant that was not
// used is taken back, and each of their slots that is FREE, or becomes it, loses its file. `on` = false: there is room,
// or the new layout is refused; LayoutChosen says the same.
struct RoomNeeded {
  bool on = false;
};

// Another rank of the job lacks memory for a new layout, or no longer: of the layouts before the chosen one (of all,
// when this rank has left the node), each slot that is FREE, or becomes it, loses its file.
struct OthersNeedRoom {
  bool on = false;
};

// STATE of the coordinator, after room job persisted `seen` (job::ForwardState).
struct JobState {
  StatePtr state;
};

// The process that holds the rank, by JOIN (running = 0: it is inside restore() with `ticket`) or by RESUME (running =
// the attempt whose GO it has). Repeated joins and resumes are harmless.
struct Attached {
  ProcessId process = 0;
  Ticket ticket = 0;
  AttemptId running = 0;
};

// The process has ended; copiers of it may still write what it could. Reaped follows.
struct Died {
  ProcessId process = 0;
};

// pidfd or waitid: no thread of the process and of its copiers runs any more, and none ever will.
struct Reaped {
  ProcessId process = 0;
};

// restore() of this ticket ended without GO (timeout, BYE, refusal), or its handle was closed (BYE); the process may
// live on. To be fed before the bell that it left is read: what that one does not use is not used any more.
struct Withdrawn {
  Ticket ticket = 0;
  bool closed = false;  // BYE. A refusal may cross a GO: who runs is lent slots all the same
};

// A copy of the bell of one process. `pos` must have been read before the words: a step that pos covers and that has a
// fill is then never seen without it. A bell belongs to one process for its life; a new process gets a new bell.
struct BellWord {
  SlotId slot;
  Epoch epoch = 0;
  CaptureState state = CaptureState::kNone;
  StepId step = 0;  // 0 = the grant has not been used yet
  Epoch ack = 0;
  bool crcs_valid = false;  // COMPLETE, and every chunk has an entry of this epoch
  bool rescued = false;     // COMPLETE, and above a `pos` that was read after it: no save of the process itself
};
struct BellRead {
  ProcessId process = 0;
  AttemptId pos_attempt = 0;
  StepId pos = 0;
  absl::InlinedVector<BellWord, 4> words;  // a hint comes for each chunk: usually no allocation
  AttemptId wanted_attempt = 0;
  StepId wanted = 0;  // somebody waits for this step, or a newer one, to be durable
};

// LOADED and FAILED of the trainer.
struct Loaded {
  AttemptId attempt = 0;
  Ticket ticket = 0;
};
struct LoadFailed {
  AttemptId attempt = 0;
  Ticket ticket = 0;
  ErrorCode code = ErrorCode::INTERNAL;  // CORRUPT: the bytes are bad, the slot is quarantined. Else the slot stays
  std::string reason;
};

// What the ticket is to load is still being read: by this agent (View::reading), or by the trainer, which says so.
struct LoadGoesOn {
  AttemptId attempt = 0;
  Ticket ticket = 0;
};

// Results of the effects of the same names.
struct LayoutFound {
  SnapshotId snapshot;
  uint32_t layout = 0;  // known by LayoutAdded
  absl::Status status;
};
struct Fetched {
  SlotId slot;
  SnapshotId snapshot;
  absl::Status status;               // not ok: no source could give it, the storage neither
  Source source = Source::kStorage;  // or kReplica, kParity
  bool persisted = false;            // of these two: the part is known to be on storage too
};
struct FlushEnded {  // ok: part and sidecar are on storage, fsynced; kCancelled after CancelFlush; else it is retried
  SlotId slot;
  SnapshotId snapshot;
  absl::Status status;
};
struct FileReplaced {
  SlotId slot;
  absl::Status status;
};

// A reader (ckptctl, verification) uses the slot's bytes.
struct ReadPinned {
  SlotId slot;
  SnapshotId snapshot;
};
struct ReadUnpinned {
  SlotId slot;
  SnapshotId snapshot;
};

// A check of the agent found bad chunks in a sealed slot.
struct DamageFound {
  SlotId slot;
  SnapshotId snapshot;
};

// What was adopted unchecked is as its record says, or could not be checked now.
struct Checked {
  SlotId slot;
  SnapshotId snapshot;
};

// The timer of RetryAt fired: failed flushes and replacements are tried again, and writers that did not answer until
// now are waited for no longer.
struct RetryTimer {};

// The newest snapshot that is on all ranks shall become durable, whatever is flushed otherwise. While an attempt is not
// decided, that of the attempt before goes to storage, and the next coordinator commits it.
struct FlushNewest {};

// Maintenance: no new grants while true, and the newest snapshot becomes durable.
struct Draining {
  bool on = false;
};

using Event =
    std::variant<Adopted, LayoutAdded, LayoutChosen, RoomNeeded, OthersNeedRoom, JobState, Attached, Died, Reaped,
                 Withdrawn, BellRead, Loaded, LoadFailed, LoadGoesOn, LayoutFound, Fetched, FlushEnded, FileReplaced,
                 ReadPinned, ReadUnpinned, DamageFound, Checked, RetryTimer, FlushNewest, Draining>;

// --------------------------------------------------------------------------------------------------------- effects

// [region] bell of owner.process: step = 0, word = (epoch, OPEN); ctl: owner, FILLING, then Grant; then GRANT is sent.
struct OpenGrant {
  SlotId slot;
  Epoch epoch = 0;
  StepId floor = 0;
  Owner owner;
};
// [region] The lent grant's floor in ctl rose; GRANT is sent again.
struct MoveFloor {
  SlotId slot;
  Epoch epoch = 0;
  StepId floor = 0;
  Owner owner;
};
// [region] CAS (epoch, OPEN) -> (epoch, ABANDONED) in the bell of `process`, ctl: no grant if this was it; then read
// that bell again (BellRead), whoever won.
struct AbandonWord {
  SlotId slot;
  Epoch epoch = 0;
  ProcessId process = 0;
};
// [region] Record from the bell's CRC list (from the fetch: IsFetched), then state SEALED. Flag RESCUED:
// kRescued.
struct SealSlot {
  SlotId slot;
  Epoch epoch = 0;
  SnapshotId snapshot;
  Ticket ticket = 0;
  Source source = Source::kRegion;
  bool persisted = false;
};
// [region] State word only: FREE, LOADING, QUARANTINED or RETIRED.
struct SetSlotState {
  SlotId slot;
  SlotStateCode state = SlotStateCode::kFree;
};
// [region] Flag PERSISTED.
struct SetPersisted {
  SlotId slot;
};
// [region] The slot, whose last writer is gone, loses its file and the memory behind it; it is RETIRED for good.
struct DropFile {
  SlotId slot;
};
// [region] Every slot of `layout` is FREE and nobody will be lent one: unlink its files.
struct RemoveLayout {
  uint32_t layout = 0;
};
// [async: FileReplaced] A fresh file for this index; the old one is unlinked (who holds its descriptor keeps its
// bytes).
struct ReplaceFile {
  SlotId slot;
};
// [async: LayoutFound] Which layout does this snapshot have? Add it (LayoutAdded) before the answer. Ask the
// agents in their order, this one may be among them (it holds a copy itself), or those with parity, then the storage.
struct FindLayout {
  SnapshotId snapshot;
  Sources sources = {};
};
// [async: Fetched] Read and CRC-check the snapshot into the slot: in the same order.
struct Fetch {
  SlotId slot;
  SnapshotId snapshot;
  Sources sources = {};
};
// [async: FlushEnded] Part and sidecar of this sealed slot to storage.
struct StartFlush {
  SlotId slot;
  SnapshotId snapshot;
};
// A hint; FlushEnded still comes.
struct CancelFlush {
  SlotId slot;
  SnapshotId snapshot;
};
// Tells people: it was on all ranks, and will never be on storage, because its slot was freed before it was flushed.
struct Superseded {
  SnapshotId snapshot;
};
// Feed RetryTimer after a pause: `soon`, that is what a live trainer takes to answer.
struct RetryAt {
  bool soon = false;
};

// To the trainer, through SessionSink.
struct SendLoad {
  ProcessId process = 0;
  Ticket ticket = 0;
  AttemptId attempt = 0;
  SnapshotId snapshot;  // none: start afresh, no slot
  SlotId slot;
  Source source = Source::kNone;
  StatePtr state;  // for the skipped steps
};
struct SendGo {
  ProcessId process = 0;
  Ticket ticket = 0;
  AttemptId attempt = 0;
  StepId start = 0;
  StatePtr state;
};
struct SendNews {
  ProcessId process = 0;
  AttemptId attempt = 0;  // of the process
  StepId captured = 0;    // newest of that attempt, 0 = none
  StepId durable = 0;     // newest on the lineage, 0 = none
  AttemptId fenced_by = 0;
  StepId protected_step = 0;          // newest of that attempt, 0 = none
  std::vector<StepOutcome> outcomes;  // what became of that attempt's last steps: outcomes.h
};

// To room job (job::RankChanged). The fields want and world_size are the member's.
struct ReportChanged {
  RankReportPtr report;
};

using Effect = std::variant<OpenGrant, MoveFloor, AbandonWord, SealSlot, SetSlotState, SetPersisted, DropFile,
                            RemoveLayout, ReplaceFile, FindLayout, Fetch, StartFlush, CancelFlush, Superseded, RetryAt,
                            SendLoad, SendGo, SendNews, ReportChanged>;
using Effects = std::vector<Effect>;

// For logs and tests: "SealSlot 1/0 epoch 7 1000.a3".
[[nodiscard]] std::string ToString(const Event& event);
[[nodiscard]] std::string ToString(const Effect& effect);
[[nodiscard]] std::string ToString(const SlotId& slot);

}  // namespace ckptd::snapshot

#endif  // CKPTD_DAEMON_SNAPSHOT_EVENTS_H_
