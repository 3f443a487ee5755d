// The inside of snapshot::Machine. Each event handler notes facts; Settle() then applies every rule that these facts
// allow, so that the order in which facts arrive does not matter. capture.cc: bell, grants, retirement. load.cc: LOAD,
// GO, reading from storage. retain.cc: freeing, flushing, layouts. report.cc: what others are told.
#ifndef CKPTD_DAEMON_SNAPSHOT_IMPL_H_
#define CKPTD_DAEMON_SNAPSHOT_IMPL_H_

#include <deque>
#include <string>
#include <vector>

#include "daemon/snapshot/events.h"
#include "daemon/snapshot/machine.h"
#include "daemon/snapshot/outcomes.h"
#include "daemon/snapshot/table.h"

namespace ckptd::snapshot {

struct Slot {
  SlotId id;
  SlotStateCode state = SlotStateCode::kFree;
  Epoch epoch = 0;
  Owner owner;          // of FILLING and RETIRED
  StepId step = 0;      // FILLING: 0 = lent, not used yet
  SnapshotId snapshot;  // SEALED, QUARANTINED, LOADING
  int read_pins = 0;
  bool adopted = false;    // FILLING found after a restart of the agent: abandoned if still OPEN
  bool giving_up = false;  // AbandonWord was sent
  bool abandoned = false;  // the bell showed ABANDONED
  bool writer_gone = false;
  bool ack_awaited = false;  // `adopted`, abandoned: a slot is needed, and its writer has until RetryTimer to answer
  bool ack_late = false;     // it had
  bool replacing = false;  // ReplaceFile is under way: the index must not be lent meanwhile, nor what is in it promised
  Source fetched = Source::kNone;  // came from there in the present attempt
  bool rescued = false;            // SEALED: taken from the process after its death
  bool dropped = false;            // RETIRED without a file, for good
  bool captured = false;           // was the job-wide watermark
  bool persisted = false;
  bool unchecked = false;  // SEALED: found after a restart of the agent, and not checked yet: not to be stored
  bool flushing = false;
  bool flush_cancelled = false;
};

class Machine::Impl {
 public:
  explicit Impl(Config config) : config_(std::move(config)) {}

  void Step(const Event& event, Effects& effects);
  [[nodiscard]] View view() const;
  [[nodiscard]] bool flushes_all() const { return !select_flush_; }

 private:
  // Events.
  void On(const Adopted& event);
  void On(const LayoutAdded& event);
  void On(const LayoutChosen& event);
  void On(const RoomNeeded& event);
  void On(const OthersNeedRoom& event) { others_need_room_ = event.on; }
  void On(const JobState& event);
  void On(const Attached& event);
  void On(const Died& event);
  void On(const Reaped& event);
  void On(const Withdrawn& event);
  void On(const BellRead& event);
  void On(const Loaded& event);
  void On(const LoadFailed& event);
  void On(const LoadGoesOn& event);
  void On(const LayoutFound& event);
  void On(const Fetched& event);
  void On(const FlushEnded& event);
  void On(const FileReplaced& event);
  void On(const ReadPinned& event);
  void On(const ReadUnpinned& event);
  void On(const DamageFound& event);
  void On(const Checked& event);
  void On(const RetryTimer& event);
  void On(const FlushNewest& event);
  void On(const Draining& event);

  void Settle();

  // capture.cc
  void BeginAttempt(AttemptId attempt);
  [[nodiscard]] bool HasRank() const;
  void TakeWord(Slot& slot, const BellWord& word);
  void Complete(Slot& slot, const BellWord& word);
  void TellUnsealed(const Owner& owner, StepId step, bool whole);
  void TakeBackUnused(const BellRead& event);
  void GiveUpStaleFills();
  [[nodiscard]] bool MustGiveUp(const Slot& slot) const;
  void Lend();
  [[nodiscard]] bool MayLend() const;
  [[nodiscard]] Slot* MakeRoom(uint32_t layout);
  [[nodiscard]] bool AwaitsAck(Slot& slot);
  void PublishFloor(StepId before);

  // load.cc
  [[nodiscard]] const v1::RankClaim* DecidedClaim() const;
  [[nodiscard]] bool MayLoad() const;
  void Load();
  void LoadFrom(Slot& slot);
  void SendLoadNone();
  void FetchParent();
  [[nodiscard]] Sources SourcesOfParent() const;
  void FetchFailed(const absl::Status& status);
  void Fail(ErrorCode code, const std::string& reason, v1::RankReport::Source source);
  void Go();

  // retain.cc
  [[nodiscard]] bool Live(const Slot& slot) const;
  [[nodiscard]] bool KeptForProtection(const SnapshotId& id) const;
  [[nodiscard]] bool Doomed(const Slot& slot) const;
  [[nodiscard]] bool Pinned(const Slot& slot) const;
  void FreeDead();
  [[nodiscard]] bool Left() const;
  [[nodiscard]] uint32_t OldBelow() const;
  [[nodiscard]] bool GivesRoom(uint32_t layout) const;
  void Shrink();
  [[nodiscard]] const SnapshotId& Newest() const { return decided_ ? watermark_ : newest_before_; }
  [[nodiscard]] bool ChosenForFlush(const Slot& slot) const;
  void Flush();
  void NoteSuperseded(const Slot& slot);
  void RetireLeftFills();
  void RemoveOldLayouts();

  // report.cc
  void SendReport();
  void SendNewsIfChanged();
  [[nodiscard]] bool Runs(const Owner& owner) const;
  [[nodiscard]] v1::RankReport::Load ReportedLoad() const;

  void Move(Slot& slot, Trigger trigger);
  void Clear(Slot& slot);
  [[nodiscard]] Slot* Find(const SlotId& id);
  [[nodiscard]] Slot* FindSealed(const SnapshotId& id);
  [[nodiscard]] Slot* FindFree(uint32_t layout);
  [[nodiscard]] bool Same(const SnapshotId& a, const SnapshotId& b) const;
  template <typename T>
  void Emit(T effect) {
    effects_->push_back(std::move(effect));
  }

  Config config_;
  Effects* effects_ = nullptr;  // of the present Step
  std::vector<Slot> slots_;
  Epoch last_epoch_ = 0;

  // The job, as its coordinator told. Forgotten with each higher attempt.
  AttemptId seen_ = 0;
  StatePtr state_;  // the newest of attempt `seen_`
  bool decided_ = false;
  v1::State::Phase phase_ = v1::State::GATHER;
  SnapshotId parent_;
  SnapshotId watermark_;
  StepId floor_ = 0;
  SnapshotId durable_;
  SnapshotId protected_;    // on as many agents as the job wants
  SnapshotId protecting_;   // all ranks copy it, or have
  SnapshotId unprotected_;  // up to this one nothing is kept for that
  uint64_t protection_turns_ = 0;
  bool select_flush_ = false;  // only flush_target_ is flushed
  SnapshotId flush_target_;
  StepId flush_wanted_ = 0;  // of attempt `seen_`
  bool closed_ = false;      // its handle: nothing is lent to it
  ProcessId leaving_ = 0;    // died with the rank, and is not reaped yet
  bool gone_ = false;        // reaped: the process that had LOADED or GO of attempt `seen_`
  // Of the last attempt whose decision was known, for as long as that of `seen_` is not: its W, whether that was
  // committed, and whether FlushNewest came.
  SnapshotId newest_before_;
  bool before_durable_ = false;
  bool flush_before_ = false;
  // Flushed by this agent last; also of slots that hold something else by now. Other ranks may be
  // slower, and a step is committed when all ranks have said that they are done.
  std::deque<SnapshotId> on_storage_;

  // The process that holds the rank.
  ProcessId process_ = 0;
  Ticket ticket_ = 0;
  AttemptId running_ = 0;  // attempt of its GO; 0 = it is inside restore(), or there is none
  bool waiting_ = false;   // inside restore()
  uint32_t layout_ = 0;    // it chose
  bool others_need_room_ = false;
  uint32_t room_below_ = 0;  // RoomNeeded: layouts below this one give their free slots up
  AttemptId pos_attempt_ = 0;
  StepId pos_ = 0;

  // restore() of the present ticket in attempt `seen_`.
  v1::RankReport::Load load_ = v1::RankReport::NONE;
  uint64_t load_turns_ = 0;  // never falls
  bool load_sent_ = false;
  bool go_sent_ = false;
  Source load_source_ = Source::kNone;
  ErrorCode failure_code_ = ErrorCode::OK;
  std::string failure_;
  v1::RankReport::Source failed_source_ = v1::RankReport::UNKNOWN;

  // Reading the parent from storage: at most one at a time.
  SnapshotId wanted_;           // asked for by FindLayout; none = nothing is under way
  uint32_t wanted_layout_ = 0;  // its answer; 0 = not yet
  bool fetching_ = false;       // a slot is LOADING
  AttemptId asked_in_ = 0;      // the newer of the two

  bool draining_ = false;
  bool flush_blocked_ = false;    // until RetryTimer
  bool replace_blocked_ = false;  // until RetryTimer
  bool report_dirty_ = true;
  SendNews news_;      // last sent, without outcomes
  Outcomes outcomes_;  // of process_ in attempt running_
  std::string last_error_;
};

}  // namespace ckptd::snapshot

#endif  // CKPTD_DAEMON_SNAPSHOT_IMPL_H_
