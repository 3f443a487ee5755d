// What happens to one job on this agent (events), and what has to be done about it (effects).
//
// Plain values: no I/O, no clock, no threads. The executor (room app) carries out the effects of one Step() in their
// order, all of them, before the next Step(). [sync] effects are done when the executor goes on; [async] effects are
// only started and answered by the event named beside them, with the same `op` (an answer with an unknown op is
// ignored, so nothing has to be cancelled). Messages to agents may be lost, doubled, delayed and reordered; a message
// to this agent itself comes back as StateReceived or ReportReceived of a later Step().
#ifndef CKPTD_DAEMON_JOB_EVENTS_H_
#define CKPTD_DAEMON_JOB_EVENTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/base/errors.h"
#include "daemon/base/ids.h"
#include "daemon/base/marks.h"
#include "proto/ckptd/v1/job.pb.h"

namespace ckptd::job {

using StatePtr = std::shared_ptr<const v1::State>;
using ReportPtr = std::shared_ptr<const v1::Report>;
using RankReportPtr = std::shared_ptr<const v1::RankReport>;

// As in room snapshot: never reused by another process.
using ProcessId = uint64_t;

// Numbers the requests of one Machine; 0 = none.
using OpId = uint64_t;

enum class TimerKind : uint8_t {
  kResend,     // STATE and REPORT are repeated (only with more than one agent)
  kDecide,     // decide_timeout: agents that have not reported have nothing. key = attempt
  kRetry,      // storage failed in RUN: try again. key = attempt
  kSettle,     // act on the REPORTs that came
  kJoin,       // restore(timeout=) of a ticket is over, or this long since it went on. key = ticket
  kPins,       // pins on the storage may be looked at again. key = attempt
  kUndeleted,  // what could not be deleted may be tried again. key = attempt
  kProve,      // what could not be read back may be tried again
};

// ---------------------------------------------------------------------------------------------------------- events

// First event. The job was found in the region, or a trainer named it: a coordinator that died is resumed when the
// newest record names this agent.
struct Started {
  AttemptId seen = 0;  // from the job journal; 0 = new job
  uint64_t region_id = 0;
  AttemptId lost = 0;    // up to it this region may have lost snapshots; 0 = none
  KeptMarks marks = {};  // from the job journal
};

// JOIN of a trainer on this node; repeated joins are harmless. `process` is alive now.
struct Join {
  Rank rank = 0;
  Ticket ticket = 0;
  ProcessId process = 0;
  uint32_t world_size = 0;
  v1::Want want;
  Nanos timeout{};
};

// restore() of this ticket is over at the trainer's end (BYE, its own timeout).
struct Withdrawn {
  Rank rank = 0;
  Ticket ticket = 0;
};

// The process is gone for good.
struct Reaped {
  Rank rank = 0;
  ProcessId process = 0;
};

// RESUME after a restart of this agent: the process holds the rank and runs; it is not inside restore().
struct Resumed {
  Rank rank = 0;
  ProcessId process = 0;
  AttemptId attempt = 0;  // that it runs
};

struct StateReceived {
  StatePtr state;
};
struct ReportReceived {
  ReportPtr report;
};

// snapshot::ReportChanged of a rank on this node.
struct RankChanged {
  RankReportPtr report;
};

// The complete copies and parity that this agent holds for ranks of other agents, all of them; each change, and anew
// for each attempt. `seen` is the attempt of the holder's marks (region::PeerMarks): from then on nothing of this is
// given up before the decision of `seen` is known. ForwardState of a higher attempt is answered by one of these, and
// until then nothing is REPORTed. Who never feeds one has no copies. After a start of the agent it comes right after
// Started.
struct CopiesChanged {
  AttemptId seen = 0;
  std::vector<v1::HeldCopies> copies;
  std::vector<v1::HeldParity> parity = {};
};

// A holder refuses what all ranks copy now, for a reason that does not pass by itself (no memory). The loss of its node
// would cost the step anyway: nothing is kept for the sake of protection up to here, and the next one is tried.
struct CopyRefused {
  SnapshotId id;
};

// A call to the storage that restore() waits for has hung for too long; which one is for people. What it was part of
// may still be answered, much later.
struct StorageHangs {
  Ticket ticket = 0;  // whose patience is over; 0 = everybody's
  std::string call;   // "create /data/job/attempts/a0003.json for 1m01s"
};

// Who the agents of the job are, from now on; this one is among them. An agent that left is told nothing more and
// nobody waits for it; what it reported in this attempt stays.
struct MembersChanged {
  std::vector<std::string> members;
};

struct TimerFired {
  TimerKind kind = TimerKind::kResend;
  uint64_t key = 0;
};

// A step directory as listed.
struct StoredStep {
  SnapshotId id;
  uint32_t world_size = 0;  // 0 = not even one sidecar
  uint32_t sidecars = 0;    // ranks whose sidecar is there
  bool committed = false;   // a manifest that parses and whose CRC is good
  AttemptId marker = 0;     // the deleting attempt; 0 = no marker
  bool pinned = false;
  bool newer = false;           // committed by a newer ckptd: neither read nor deleted
  int64_t created_unix_ns = 0;  // of the manifest, when it was listed; for people, never compared
};

// Answers. `status` not ok: the operation failed and may or may not have happened.
struct NewestRead {  // the highest attempt record, and its decision when there is one
  OpId op = 0;
  absl::Status status;
  bool found = false;
  v1::AttemptRecord record;
  bool decided = false;
  v1::DecisionRecord decision;
};
struct AttemptCreated {  // kAlreadyExists: somebody was faster
  OpId op = 0;
  absl::Status status;
};
struct Listed {  // every decision, every step directory; incomplete listings are an error, never a short answer
  OpId op = 0;
  absl::Status status;
  std::vector<v1::DecisionRecord> decisions;
  std::vector<StoredStep> steps;
  std::vector<AttemptId> unreadable{};  // whose decision is there and damaged; never one that may void a marker
  AttemptId newest = 0;                 // highest attempt record
};
struct DecisionCreated {  // ok also when it existed: `decision` is what the file holds
  OpId op = 0;
  absl::Status status;
  v1::DecisionRecord decision;
};
struct ManifestCreated {  // ok also when it existed; kNotFound: a sidecar is missing
  OpId op = 0;
  absl::Status status;
};
struct NewestChecked {
  OpId op = 0;
  absl::Status status;
  AttemptId newest = 0;
};
struct StepVerified {  // manifest, sizes and every CRC of the step were read from storage and are right
  OpId op = 0;
  absl::Status status;
};
struct RankVerified {  // manifest, sidecar, sizes and every CRC of the rank's part were read from storage and are right
  OpId op = 0;
  absl::Status status;
};
struct MarkerPut {
  OpId op = 0;
  absl::Status status;
  bool pinned = false;  // by whom the coordinator does not hear: there is no marker
  uint32_t whole = 0;   // it is no remains: parts of so many ranks are there. There is no marker
};
struct StepDeleted {
  OpId op = 0;
  absl::Status status;
};
struct PinLooked {
  OpId op = 0;
  absl::Status status;
  bool pinned = false;
};
struct RecordsPruned {
  OpId op = 0;
  absl::Status status;
  AttemptId newest = 0;  // highest attempt record; when it is not the pruner's, nothing was deleted
};

// Operator: pin state changed on storage; delete this step although retention would keep it.
struct PinChanged {
  SnapshotId id;
  bool pinned = false;
};
struct DeleteRequested {
  uint64_t request = 0;  // comes back in DeleteEnded
  SnapshotId id;
};

// Live configuration.
struct Retention {
  uint32_t keep_last = 2;   // committed steps on the lineage; at least 1
  uint64_t keep_every = 0;  // and steps divisible by this; 0 = none
};
struct RetentionChanged {
  Retention retention;
};

using Event =
    std::variant<Started, Join, Withdrawn, Reaped, Resumed, StateReceived, ReportReceived, RankChanged, CopiesChanged,
                 CopyRefused, StorageHangs, MembersChanged, TimerFired, NewestRead, AttemptCreated, Listed,
                 DecisionCreated, ManifestCreated, NewestChecked, StepVerified, RankVerified, MarkerPut, StepDeleted,
                 PinLooked, RecordsPruned, PinChanged, DeleteRequested, RetentionChanged>;

// --------------------------------------------------------------------------------------------------------- effects

// [sync] region: job journal. Everything after it in the list counts on it.
struct PersistSeen {
  AttemptId attempt = 0;
};
// [sync] region: job journal; what it has is raised by this (KeptMarks::Raise). Before a coordinator tells of it, and
// before a member obeys it.
struct PersistMarks {
  KeptMarks marks;
};
// [sync] snapshot::JobState for every rank of the job on this node, before the effects that follow. With copies on, the
// holder's marks become {attempt, protected, watermark, floor} of it (region::Advance; floor 0 = not decided yet), and
// when they did, CopiesChanged is fed. Who owes copies to whom is in `groups`, what is to be copied first `protecting`.
struct ForwardState {
  StatePtr state;
};
// To `agent`; in-process when it is this one.
struct SendState {
  std::string agent;
  StatePtr state;
};
struct SendReport {
  std::string agent;
  ReportPtr report;
};
// ERROR to the trainer of (rank, ticket): SessionSink::Refuse with Error(code, message). Feed snapshot::Withdrawn too.
struct Refuse {
  Rank rank = 0;
  Ticket ticket = 0;
  ErrorCode code = ErrorCode::INTERNAL;
  std::string message;
};
// PATIENCE to the trainer of (rank, ticket): what it waits for goes on. Whatever becomes of it, it is told within this.
struct KeepWaiting {
  Rank rank = 0;
  Ticket ticket = 0;
  Nanos patience{};
};
// snapshot::Attached{process, ticket, running = 0} for the rank: its JOIN was accepted.
struct AcceptJoin {
  Rank rank = 0;
  Ticket ticket = 0;
  ProcessId process = 0;
};
// Feed TimerFired{kind, key} once, after `after`.
struct StartTimer {
  TimerKind kind = TimerKind::kResend;
  uint64_t key = 0;
  Nanos after{};
  Rank rank = 0;  // of kJoin: the rank's timer before this one is of no use any more
};

// [async: NewestRead]
struct ReadNewest {
  OpId op = 0;
};
// [async: AttemptCreated] exclusively
struct CreateAttempt {
  OpId op = 0;
  v1::AttemptRecord record;
};
// [async: Listed]
struct List {
  OpId op = 0;
  AttemptId before = UINT64_MAX;  // of the newest decision below it the lineage is wanted, of no other
};
// [async: DecisionCreated] exclusively; existing: answer with its content
struct CreateDecision {
  OpId op = 0;
  v1::DecisionRecord decision;
};
// [async: ManifestCreated] from the sidecars of all ranks, exclusively. Files of another number of ranks are CORRUPT
struct CreateManifest {
  OpId op = 0;
  SnapshotId id;
  uint32_t world_size = 0;  // of its attempt
};
// [async: NewestChecked] number of the highest attempt record, read after everything before was durable
struct CheckNewest {
  OpId op = 0;
};
// [async: StepVerified] of a Removal only
struct VerifyStep {
  OpId op = 0;
  SnapshotId id;
};
// [async: RankVerified] one at a time. A manifest of another number of ranks is CORRUPT
struct VerifyRank {
  OpId op = 0;
  SnapshotId id;
  Rank rank = 0;
  uint32_t world_size = 0;
};
// [sync] nobody waits any more for the answer to the last VerifyRank: it may end early, and need not be fed
struct EndVerification {};
// [async: MarkerPut] `deleting` with the deleter's attempt. Remains only where the storage has neither a manifest nor
// the parts of all ranks
struct PutMarker {
  OpId op = 0;
  SnapshotId id;
  AttemptId attempt = 0;
  bool remains = false;
};
// [async: StepDeleted] manifest first, then the files, the marker last
struct DeleteStep {
  OpId op = 0;
  SnapshotId id;
};
// [async: PinLooked] is its pin there still? `ckptctl unpin` on another node reaches the storage only
struct LookAtPin {
  OpId op = 0;
  SnapshotId id;
};
// [async: RecordsPruned] these decisions, and attempt records below `attempt`, unless there is a higher one
struct PruneRecords {
  OpId op = 0;
  AttemptId attempt = 0;
  std::vector<AttemptId> decisions;
};
struct DeleteEnded {
  uint64_t request = 0;
  absl::Status status;
};

using Effect =
    std::variant<PersistSeen, PersistMarks, ForwardState, SendState, SendReport, Refuse, KeepWaiting, AcceptJoin,
                 StartTimer, ReadNewest, CreateAttempt, List, CreateDecision, CreateManifest, CheckNewest, VerifyStep,
                 VerifyRank, EndVerification, PutMarker, DeleteStep, LookAtPin, PruneRecords, DeleteEnded>;
using Effects = std::vector<Effect>;

[[nodiscard]] std::string ToString(const Event& event);
[[nodiscard]] std::string ToString(const Effect& effect);

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_EVENTS_H_
