// One job on this agent: its job machine, its ranks, and the queue that drives them.
//
// Everything that happens to the job or to one of its ranks passes through one queue and is worked off completely
// before the next: the machines' order of effects is kept, and neither ever sees the other in the middle of a step.
//
// Control thread only.
#ifndef CKPTD_DAEMON_APP_JOB_RUNNER_H_
#define CKPTD_DAEMON_APP_JOB_RUNNER_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "daemon/app/job_metrics.h"
#include "daemon/app/rank_runner.h"
#include "daemon/app/services.h"
#include "daemon/base/callback_scope.h"
#include "daemon/job/machine.h"
#include "daemon/protect/copy_sender.h"

namespace ckptd {

class JobRunner {
 public:
  JobRunner(Services& services, region::JobRegion& region);
  ~JobRunner();
  JobRunner(const JobRunner&) = delete;
  JobRunner& operator=(const JobRunner&) = delete;

  // First: what the region held when the agent started; nothing for a new job.
  void Start(const region::AdoptedJob* adopted);

  void OnJoin(const Peer& peer, SessionId session, const JoinRequest& join);
  void OnLoaded(Rank rank, const LoadedRequest& loaded);
  void OnLoading(Rank rank, const LoadingRequest& loading);
  void OnLayout(Rank rank, snapshot::ProcessId process, uint32_t world, const LayoutRequest& request, UniqueFd headers);
  void OnResume(const Peer& peer, SessionId session, const ResumeRequest& resume, UniqueFd bell);
  void OnCapture(Rank rank, snapshot::ProcessId process);
  void OnBye(Rank rank, Ticket ticket, snapshot::ProcessId process);
  void OnDisconnected(SessionId session);
  void OnDevices(Rank rank, snapshot::ProcessId process, DevicesRequest devices);
  // The trainer has ended; a copier of it may still write.
  void OnProcessDead(snapshot::ProcessId process);
  // What its bells say now; as after a hint.
  void ReadBells(snapshot::ProcessId process);
  // Nobody writes for it any more.
  void OnReaped(snapshot::ProcessId process);
  void OnFlushed(const FlushOutcome& outcome);
  // What is captured now becomes durable, whatever is flushed otherwise.
  void FlushNewest();
  void SetDraining(bool on);
  void SetRetention(const RetentionConfig& retention);
  // `call` has hung for longer than storage.timeout, and restore() waits for what it is part of.
  void OnStorageHangs(const std::string& call);
  // Before it and the job's region go. Nothing that still comes from workers is looked at any more.
  void Stop();

  // What this node holds of the job for others changed.
  void OnCopies();
  // A sealed slot of a rank of this node, pinned as long as the answer lives, which ends on the loop's thread.
  // NOT_FOUND.
  [[nodiscard]] absl::StatusOr<protect::HeldSnapshot> OpenSealed(Rank rank, const SnapshotId& id);
  // The newest STATE heard; null when none was.
  [[nodiscard]] const job::StatePtr& last_state() const { return last_state_; }
  // Of the newest attempt that is known to be decided; null when none is.
  [[nodiscard]] const v1::DecisionRecord* decision() const { return decided_ ? &decided_->decision() : nullptr; }
  [[nodiscard]] const protect::CopySender& sender() const { return sender_; }

  // Operator.
  void Post(job::Event event);
  void PostToRank(Rank rank, snapshot::Event event);
  using DeleteDone = std::function<void(const absl::Status&)>;
  void Delete(const SnapshotId& id, DeleteDone done);

  [[nodiscard]] const std::string& name() const { return region_.job(); }
  [[nodiscard]] uint32_t uid() const { return region_.journal().uid(); }
  [[nodiscard]] job::View view() const { return machine_.view(); }
  [[nodiscard]] const std::map<Rank, std::unique_ptr<RankRunner>>& ranks() const { return ranks_; }
  [[nodiscard]] bool flushing() const;
  // A flush or a reader. Not: a trainer.
  [[nodiscard]] bool busy() const;
  // What it has asked of the storage that is not answered yet. Counted on when the job is gone.
  [[nodiscard]] std::shared_ptr<const uint64_t> asking() const { return asking_; }
  // Steps this agent saw become captured or durable since it started, for their ages.
  [[nodiscard]] RankRunner* FindRank(Rank rank);

 private:
  friend struct JobEffects;  // job_effects.cc: one overload per effect
  using RankItem = std::pair<Rank, snapshot::Event>;
  using Item = std::variant<job::Event, RankItem, std::function<void()>>;
  using EndedFlag = std::shared_ptr<std::atomic<bool>>;

  absl::StatusOr<RankRunner*> ObtainRank(Rank rank);
  absl::StatusOr<RankRunner*> EnterRank(Rank rank);
  void RoomNeeded(Rank rank, bool on);
  [[nodiscard]] region::Shrinkable ShrinkableBeside(Rank rank) const;
  void SweepLeftovers();
  void EndVerification();
  void Push(Item item);
  void Work(Item item);
  void Execute(const job::Effects& effects);
  void Forward(const job::StatePtr& state);
  // By the slots of this node's ranks, and by what the coordinator listed; 0 = unknown.
  [[nodiscard]] int64_t CapturedAt(const SnapshotId& id) const;
  [[nodiscard]] int64_t CommittedAt(const SnapshotId& id) const;
  [[nodiscard]] protect::CopySender::Handler SenderHandler();
  [[nodiscard]] static job::Config MachineConfig(const Services& services, region::JobRegion& region);

  Services& services_;
  region::JobRegion& region_;
  job::Machine machine_;
  JobMetrics metrics_;
  std::map<Rank, std::unique_ptr<RankRunner>> ranks_;
  std::set<Rank> need_room_;  // for new layouts
  protect::CopySender sender_;
  std::vector<Item> queue_;   // emptied when all is worked off; keeps its memory, as effects_ does
  job::Effects effects_;      // of the present Step
  job::StatePtr last_state_;  // as forwarded to the ranks
  job::StatePtr decided_;     // the last one with a decision
  bool running_ = false;
  bool stopped_ = false;
  bool draining_ = false;
  uint64_t next_request_ = 1;
  std::map<uint64_t, DeleteDone> deletions_;
  const std::shared_ptr<uint64_t> asking_ = std::make_shared<uint64_t>(0);
  EndedFlag verification_ended_;  // of the last VerifyRank; null before the first
  std::set<Loop::TimerId> timers_;
  std::map<Rank, Loop::TimerId> join_timers_;  // of these, the newest of each rank
  CallbackScope scope_;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_APP_JOB_RUNNER_H_
