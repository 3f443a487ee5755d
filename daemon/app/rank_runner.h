// One rank on this agent: feeds its snapshot machine and carries out what the machine wants, in region, storage and
// socket. Knows nothing of why.
//
// Control thread only. Events are worked off one at a time, all effects of one before the next (room snapshot asks for
// it); whatever the machine wants to tell room job goes to the job's queue and is worked off later.
#ifndef CKPTD_DAEMON_APP_RANK_RUNNER_H_
#define CKPTD_DAEMON_APP_RANK_RUNNER_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/app/bells.h"
#include "daemon/app/job_metrics.h"
#include "daemon/app/layout_intake.h"
#include "daemon/app/rank_saves.h"
#include "daemon/app/services.h"
#include "daemon/app/trainer_channel.h"
#include "daemon/base/callback_scope.h"
#include "daemon/protect/copy_fetch.h"
#include "daemon/protect/copy_sender.h"
#include "daemon/protect/parity_fetch.h"
#include "daemon/region/rank_region.h"
#include "daemon/region/verify.h"
#include "daemon/snapshot/machine.h"

namespace ckptd {

// What a fetch brought into a slot, until it is sealed.
struct FetchedSlot {
  SnapshotId snapshot;
  SnapshotId parent;
  std::vector<uint32_t> chunk_crcs;
  uint64_t trace = 0;
  int64_t captured_unix_ns = 0;
};

class RankRunner {
 public:
  struct Options {
    std::string job;
    Rank rank = 0;
    uint32_t uid = 0;
    // Into the job's queue: nothing that comes from a worker, a timer or a descriptor runs in between two effects.
    std::function<void(std::function<void()>)> enqueue;
    std::function<void(snapshot::RankReportPtr)> on_report;
    // Copies of what is being captured; null while nobody wants any.
    std::function<protect::CopySender*()> early;
    // A new layout of this rank lacks memory, or no longer; and what the job's other ranks can give back.
    std::function<void(bool)> on_room_needed;
    std::function<region::Shrinkable()> elsewhere;
  };

  RankRunner(Services& services, region::RankRegion& region, Options options);

  // Takes over what the region held when the agent started. First.
  void Adopt(const region::AdoptedRank& adopted, AttemptId seen);
  // From the job's queue only.
  void Feed(snapshot::Event event);

  // From the session of `process`.
  void Attach(snapshot::ProcessId process, SessionId session) { channel_.SetSession(process, session); }
  void OnLayout(snapshot::ProcessId process, uint32_t world, const LayoutRequest& request, UniqueFd headers);
  // False: REFUSED was sent, the trainer registers its layout anew.
  bool OnResume(snapshot::ProcessId process, const ResumeRequest& request, UniqueFd bell);
  void OnHint(snapshot::ProcessId process);
  void OnDisconnected(SessionId session) { channel_.Disconnect(session); }
  void OnDevices(snapshot::ProcessId process, DevicesRequest devices);
  void OnProcessDead(snapshot::ProcessId process);
  void OnReaped(snapshot::ProcessId process);
  void OnFlushed(const FlushOutcome& outcome);
  void OthersNeedRoom(bool on) { Feed(snapshot::OthersNeedRoom{on}); }
  // Its region goes: nothing reads it any more.
  void Stop();

  [[nodiscard]] TrainerChannel& channel() { return channel_; }
  [[nodiscard]] snapshot::View view() const { return machine_.view(); }
  [[nodiscard]] region::RankRegion& region() { return region_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const LayoutIntake& intake() const { return intake_; }
  // For a new layout of another rank.
  [[nodiscard]] region::Shrinkable shrinkable() const;
  [[nodiscard]] bool flushing() const;
  // A flush, a reader, or what comes back from a worker and would find the region gone.
  [[nodiscard]] bool busy() const;
  // Where the bytes of the slot, which holds `id`, are.
  [[nodiscard]] absl::StatusOr<FlushSource> SourceOf(const snapshot::SlotId& slot, const SnapshotId& id);
  // Why the trainer's newest layout was refused; OK when it was not.
  [[nodiscard]] const absl::Status& layout_problem() const { return layout_problem_; }
  [[nodiscard]] RankMetrics& metrics() { return metrics_; }
  [[nodiscard]] RankSaves& saves() { return saves_; }
  // What the process that holds the rank last told of its tensors on GPUs; null when it has none.
  [[nodiscard]] const DevicesRequest* devices() const;
  // It waits for another trainer of this node to pin its memory.
  [[nodiscard]] bool waits_to_pin() const;

 private:
  struct Streamed {
    SnapshotId id;        // as the bell told it when it began
    uint32_t chunks = 0;  // handed over so far
    bool flushed = false;
    std::vector<uint32_t> crcs{};  // of these chunks, where copies are made early
  };

  static constexpr Nanos kRetryPause = std::chrono::seconds(2);
  static constexpr Nanos kAnswerPause = std::chrono::milliseconds(50);  // less than from one save to the next
  static constexpr Nanos kReadingPulse = std::chrono::seconds(1);

  friend struct RankEffects;  // rank_effects.cc: one overload per effect
  friend struct RankFetch;    // rank_fetch.cc

  void Execute(const snapshot::Effects& effects);
  [[nodiscard]] protect::RebuildEnds EndsOfRebuild();
  [[nodiscard]] std::unique_ptr<protect::StoredCopy> OnStorage(const SnapshotId& id);
  [[nodiscard]] absl::Status MayRegister() const;
  void NeedRoom(bool on);
  void TellReading();
  [[nodiscard]] snapshot::BellRead ReadBells(snapshot::ProcessId process);
  [[nodiscard]] bool IsBack(snapshot::ProcessId process) const;
  void JudgeRescued(snapshot::BellRead& read) const;
  [[nodiscard]] region::LayoutSet* Set(const snapshot::SlotId& slot) { return region_.FindLayout(slot.layout); }
  [[nodiscard]] absl::StatusOr<Bells::Fill> TakeFill(const snapshot::SlotId& slot, Epoch epoch);
  [[nodiscard]] FlushKey KeyOf(const snapshot::SlotId& slot, Epoch epoch) const;
  void Stream(snapshot::ProcessId process);
  void StreamSlot(const region::Bell& bell, uint32_t layout, uint32_t slot, const region::BellSlotView& view);
  [[nodiscard]] Streamed* StreamOf(const FlushKey& key, const snapshot::SlotId& slot, const SnapshotId& id);
  void LayoutIsReady(snapshot::ProcessId process, AttemptId attempt, region::LayoutSet& set);
  void SendLayout(snapshot::ProcessId process, AttemptId attempt, region::LayoutSet& set);
  void SendLayoutInTurn(snapshot::ProcessId process, AttemptId attempt, uint32_t layout);
  void MendSlot(const snapshot::SlotId& slot, std::function<void()> then);
  void StartMending(const snapshot::SlotId& slot);
  void KeepBuild(const std::shared_ptr<region::SlotBuild>& started, std::shared_ptr<region::SlotBuild>& build) const;
  void Mended(const snapshot::SlotId& slot, const std::shared_ptr<region::SlotBuild>& build, absl::Status status);
  void MendLater(const snapshot::SlotId& slot);
  void EndMending(const snapshot::SlotId& slot);
  void VerifyAdopted(const snapshot::SlotId& slot);
  void Verified(const snapshot::SlotId& slot, const SnapshotId& id, const absl::Status& status);

  Services& services_;
  region::RankRegion& region_;
  const Options options_;
  snapshot::Machine machine_;
  std::atomic<AttemptId> seen_{0};  // the machine's, for the loop's thread
  TrainerChannel channel_;
  Bells bells_;
  LayoutIntake intake_;
  protect::CopyFetch copy_fetch_;
  protect::ParityFetch parity_fetch_;
  absl::Status layout_problem_;
  RankMetrics metrics_;
  RankSaves saves_;
  std::vector<snapshot::Event> queue_;  // emptied when all is worked off; keeps its memory, as effects_ does
  snapshot::Effects effects_;           // of the present Step
  bool running_ = false;
  bool tells_reading_ = false;
  snapshot::ProcessId devices_of_ = 0;
  DevicesRequest devices_;
  std::map<snapshot::ProcessId, uint32_t> asked_;    // header CRC of the last LAYOUT of each process
  SnapshotId parent_;                                // of the attempt that runs
  std::map<snapshot::SlotId, FetchedSlot> fetched_;  // until SealSlot
  std::map<FlushKey, Streamed> streaming_;           // fills being streamed
  std::map<snapshot::SlotId, Epoch> unflushed_;      // fills of which a flush did not end well
  std::map<snapshot::SlotId, std::vector<std::function<void()>>> mending_;  // what waits for its new file
  CallbackScope scope_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_RANK_RUNNER_H_
