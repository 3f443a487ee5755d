// One attempt at a time, from its record to its end (protocol.md, section 5). opening.cc: records, listing, late
// commits. gather.cc: who has joined, the choice, the decision file. running.cc: LOAD, RUN, W and G, commits, deletion.
// remains.cc: steps that are never completed. telling.cc: STATE. holders.cc: copies on other agents.
#ifndef CKPTD_DAEMON_JOB_COORDINATOR_H_
#define CKPTD_DAEMON_JOB_COORDINATOR_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/job/commit.h"
#include "daemon/job/context.h"
#include "daemon/job/decision.h"
#include "daemon/job/deletion.h"
#include "daemon/job/grants.h"
#include "daemon/job/member.h"
#include "daemon/job/proofs.h"
#include "daemon/job/protection.h"
#include "daemon/job/reports.h"
#include "daemon/job/table.h"
#include "daemon/job/who_has.h"

namespace ckptd::job {

// For so many ticks nothing came: others hold in its place.
inline constexpr uint64_t kSilentForLong = 10;
// After so many without a word all are told again that the attempt lives: by that members know (kUnheardForLong).
inline constexpr uint64_t kTellAgain = kUnheardForLong / 2;

class Coordinator {
 public:
  Coordinator(Context* context, Member* member) : context_(*context), member_(*member) {
    reports_.SetMembers(context_.config.members);
  }

  // The agent started: resume when the newest record names it.
  void Resume();
  // A rank here runs this attempt. The region that had seen it is gone (another pod, a tmpfs that was emptied).
  void ResumeUnseen(AttemptId attempt);
  // Rank 0 joined here.
  void Open(const Join& join);

  void On(const ReportReceived& event);
  void On(const NewestRead& event);
  void On(const AttemptCreated& event);
  void On(const Listed& event);
  void On(const DecisionCreated& event);
  void On(const ManifestCreated& event);
  void On(const NewestChecked& event);
  void On(const MarkerPut& event);
  void On(const StepDeleted& event);
  void On(const PinLooked& event);
  void On(const RecordsPruned& event);
  void On(const PinChanged& event);
  void On(const DeleteRequested& event);
  void On(const RetentionChanged& event);
  void MembersChanged();
  void DecideTimeout(AttemptId attempt);
  void Retry(AttemptId attempt);
  void DeletionRested(TimerKind kind) { deleter_.Rested(kind); }
  void Resend();
  // To those who have not said that they heard it, or say nothing; from time to time to all, as long as the job lives.
  void Repeat();
  // No rank waits or runs, nothing is asked of the storage, or another agent coordinates: nothing will happen here
  // before somebody says something.
  [[nodiscard]] bool Still() const;
  // A member or a message knows `attempt`.
  void HigherAttempt(AttemptId attempt, const std::string& where);
  // Applies everything that the facts allow.
  void Evaluate();
  // The same after a REPORT: where many agents send them, once for all that come within a moment.
  void EvaluateSoon();
  void Settled();

  [[nodiscard]] Phase phase() const { return phase_; }
  void FillView(View* view) const;
  [[nodiscard]] v1::State::Phase ToldPhase() const;

 private:
  // opening.cc
  void Begin();
  void LeaveDeletion();
  void CreateNext(AttemptId newest);
  void AskList();
  void Overtaken(const v1::AttemptRecord& record);
  [[nodiscard]] bool SameUser(const v1::AttemptRecord& record) const;
  void BelongsToAnother(const v1::AttemptRecord& record);
  void AdoptRecord(const NewestRead& event);
  void AfterListing();
  void NextLateCommit();
  [[nodiscard]] uint32_t WorldOf(const StoredStep& step) const;
  void LateCommitted(const absl::Status& status);
  void StartGather();
  void StoreFailed(const absl::Status& status, const std::string& doing);

  // gather.cc
  void CollectClaims();
  void SendWhole(const v1::Report& asks);
  void ClaimsChanged();
  void KeepOrReplaceClaim(Rank rank, const std::vector<v1::RankClaim>& waiting);
  [[nodiscard]] const v1::RankClaim& WhoseRank(Rank rank, const std::vector<v1::RankClaim>& waiting) const;
  [[nodiscard]] bool SaidAgain(const v1::RankClaim& claim, Ticket other);
  [[nodiscard]] bool AgreeOnWorldAndWant();
  [[nodiscard]] bool EveryRankClaimed() const;
  void TryDecide();
  [[nodiscard]] Inventory TakeInventory() const;
  void AddElsewhere(Rank rank, const SnapshotId& id, const std::string& agent, Inventory* inventory) const;
  void AddRebuildable(const HadBySnapshot& had, Inventory* inventory) const;
  void AddSilentMembers(Inventory* inventory) const;
  void AddLosses(const HadBySnapshot& had, Inventory* inventory) const;
  [[nodiscard]] std::map<Rank, std::string> NodesIn(AttemptId attempt) const;
  void RefuseTickets(ErrorCode code, const std::string& message, const std::vector<Ticket>& tickets);
  void RefuseAll(ErrorCode code, const std::string& message);

  // running.cc
  void EnterLoad();
  void BeginLoad();
  void UpdateLoading();
  void CheckLoads();
  void LoadFailed(const v1::RankReport& facts);
  void Reopen();
  void UpdateGrants();
  void UpdateCommits();
  void UpdateFlush();
  void OnCommit(Committer::Outcome outcome);
  void UpdateDeletion();
  [[nodiscard]] bool ProofEnded();
  [[nodiscard]] bool JoinedAnew() const;
  [[nodiscard]] SnapshotId NewestCommitted() const;
  [[nodiscard]] DeletionFacts Deletable() const;
  [[nodiscard]] bool IsCommitted(const SnapshotId& id) const;
  StoredStep& StepEntry(const SnapshotId& id);

  // remains.cc
  void NotePersisted(const v1::Report& report);
  void UpdateRemains();
  void NoteGone(const SnapshotId& gone);
  [[nodiscard]] bool IsSealed(const SnapshotId& id) const;
  [[nodiscard]] bool IsHeld(const SnapshotId& id) const;
  [[nodiscard]] bool Passed(StepId step) const;
  [[nodiscard]] bool WasParent(const SnapshotId& id) const;
  [[nodiscard]] bool OwnersReported(const SnapshotId& id) const;
  [[nodiscard]] bool IsOver(const SnapshotId& id) const;

  // telling.cc
  void Publish();
  void PublishChoice(v1::State* state) const;
  void Send(const std::string& agent);

  // holders.cc
  void RememberGroups(const v1::State& before);
  void PlaceHolders(bool anew);
  void GroupRanks();
  [[nodiscard]] bool SilentForLong(const std::string& agent) const;
  void LeaveOutSilent(const std::set<std::string>& members, std::set<std::string>* agents) const;
  [[nodiscard]] bool NeedsSurvey();
  void TakeStock();
  void LearnMarks(const ProtectionMarks& marks);
  [[nodiscard]] Holdings Stock() const;
  [[nodiscard]] bool HoldersMissing() const;
  [[nodiscard]] bool Hopeless();
  void UpdateProtection();
  void PublishProtection(v1::State* state);
  void FillProtection(View* view) const;

  [[nodiscard]] std::string Prefix() const;  // "job gpt attempt 3: "
  void To(Trigger trigger) { phase_ = NextPhase(phase_, trigger); }
  [[nodiscard]] bool Coordinates() const { return phase_ >= Phase::kGather && phase_ <= Phase::kRun; }

  Context& context_;
  Member& member_;
  Phase phase_ = Phase::kIdle;
  OpId op_ = 0;  // what phase_ waits for
  bool resuming_ = false;
  bool reopening_ = false;

  // The restore() call.
  Ticket ticket_ = 0;  // of rank 0
  v1::Want want_;
  uint32_t world_size_ = 0;
  std::map<SnapshotId, Obstacle> excluded_;
  std::set<SnapshotId> excluded_copies_;

  // The attempt.
  AttemptId attempt_ = 0;
  AttemptId heard_ = 0;  // the highest one that a REPORT told of
  bool decided_ = false;
  bool adopted_ = false;      // the decision was there before: by this agent, in an earlier life
  bool given_up_ = false;     // refused; only a new restore() call goes on
  bool gather_over_ = false;  // decide_timeout passed
  v1::DecisionRecord decision_;
  std::vector<v1::DecisionRecord> decisions_;
  std::vector<AttemptId> unreadable_;  // whose decision is damaged
  std::vector<StoredStep> steps_;
  std::vector<SnapshotId> late_;  // to be committed
  bool listed_ = false;
  Reports reports_;
  std::map<Rank, v1::RankClaim> claims_;
  uint64_t load_turns_ = 0;     // of all ranks
  uint64_t load_progress_ = 0;  // of this attempt
  std::vector<Rank> loading_;   // that have not loaded: the first of them
  std::vector<v1::Refusal> refusals_;
  std::set<Ticket> refused_;
  // Of each second claim of a rank: the REPORT of the first one's agent that was the last when it came.
  std::map<Ticket, std::pair<uint64_t, uint64_t>> contested_;
  bool unsettled_ = false;  // a second claim is neither taken nor refused yet
  Grants grants_;
  FlushPlan flush_plan_;
  Protection protection_;
  Groups groups_;                                // of this attempt, until it has some of the one before
  std::vector<protect::RankGroup> rank_groups_;  // with parity
  // HoldersMissing(), and the alive_version() it holds for; none: who holds for whom has changed.
  std::optional<std::pair<uint64_t, bool>> holders_missing_;
  bool surveying_ = false;
  uint64_t ticks_ = 0;       // resend timers since LOAD began
  uint64_t told_ago_ = 0;    // resend timers since all were told
  ProtectionMarks told_;     // in the last STATE
  KeptMarks kept_;           // for whoever comes after this process
  uint64_t told_marks_ = 0;  // version of the STATE that told first what the target is and what was given up
  std::vector<v1::RankSources> sources_;
  Committer committer_;
  Deleter deleter_;
  std::set<SnapshotId> partial_;  // of this attempt: some ranks have written their parts of it
  std::set<SnapshotId> gone_;     // deleted in this attempt, and maybe named by a rank still
  Proofs proofs_;

  StatePtr state_;               // last published
  uint64_t version_ = 0;         // of state_
  StatePtr brief_;               // state_ for those who have heard choice_version_; null: there is none
  uint64_t choice_version_ = 0;  // of the first State with the decision and groups_ as they are
  bool choice_dirty_ = false;    // a new choice_version_ is due
  bool claims_dirty_ = false;    // more ranks have joined, or loaded, than was published
  bool settling_ = false;
  bool dirty_ = false;
  std::string last_error_;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_COORDINATOR_H_
