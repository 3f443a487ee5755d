// The agent's part of a job: who holds which rank here, what the highest attempt says, and the REPORT of what the
// ranks' slots hold.
//
// `seen` is persisted before anything that follows from it leaves the agent. A REPORT is sent only when the facts of
// every rank on this agent were stated under `seen`: sealed snapshots are frozen from then until the decision, and that
// is what the coordinator's choice stands on.
#ifndef CKPTD_DAEMON_JOB_MEMBER_H_
#define CKPTD_DAEMON_JOB_MEMBER_H_

#include <map>
#include <optional>
#include <string>

#include "daemon/job/bystander.h"
#include "daemon/job/context.h"
#include "daemon/job/protection.h"
#include "daemon/job/prover.h"

namespace ckptd::job {

// Without a process here, after so many resend timers without a STATE, what is repeated is repeated so much more
// seldom. (A coordinator whose job lives is heard more often, so this is one that has ended, or is nobody's any more.)
inline constexpr uint64_t kUnheardForLong = 600;
inline constexpr int kQuietFactor = 60;

class Member {
 public:
  explicit Member(Context* context) : context_(*context), prover_(context) {}

  void On(const Started& event);
  // False: refused (RANK_TAKEN), or nothing new.
  bool On(const Join& event);
  void On(const Withdrawn& event);
  void On(const Reaped& event);
  void On(const Resumed& event);
  void On(const StateReceived& event);
  void On(const RankChanged& event);
  void On(const CopiesChanged& event);
  void On(const CopyRefused& event);
  void On(const StorageHangs& event);
  void On(const RankVerified& event);

  // restore(timeout=) of a ticket is over, or nothing went on for as long. `phase` is the local coordinator's.
  void JoinTimedOut(Ticket ticket, Phase phase);
  void Refuse(Ticket ticket, ErrorCode code, const std::string& message);
  void SendReport();
  // The timer kProve has fired.
  void ProverRested();
  // This agent coordinates its attempt no more: it waits for nothing that is read back.
  void EndProof();
  [[nodiscard]] v1::Proof Proof() const { return prover_.Proof(); }
  // One resend timer runs while there is more than one member; Resent(): it, or one from before SetQuiet(), has fired.
  void KeepResending();
  void Resent(uint64_t key);
  // No process is here, and no STATE came for long.
  [[nodiscard]] bool Quiet() const;
  // Nothing happens in this job: the resend timer is a slow one. False: at once a fast one again.
  void SetQuiet(bool quiet);

  // Its coordinator runs a job of this name for the user whose job it is here.
  [[nodiscard]] bool SameUser(const v1::State& state) const;
  // It is another user's: nothing in it holds here, its ranks are not ours, and nobody waits for us. Ranks that wait
  // here for a first attempt wait in vain; where one of this user's is known, the name is theirs.
  void StayOut(const v1::State& state);

  // What its coordinator told of the job.
  void FillView(View* view) const;
  [[nodiscard]] AttemptId seen() const { return seen_; }
  // Of protection, as far as this agent told or heard of them in its present life or the one before.
  [[nodiscard]] ProtectionMarks MarksIn(AttemptId attempt) const;
  [[nodiscard]] const StatePtr& state() const { return state_; }
  [[nodiscard]] bool Waiting(Rank rank, Ticket ticket) const;
  [[nodiscard]] bool Ready() const { return started_; }

 private:
  struct Seat {
    ProcessId process = 0;
    Join join;
    bool waiting = false;  // inside restore()
    bool goes_on = false;  // what was decided for it, since its kJoin timer began
    bool told = false;     // of that
    RankReportPtr facts;
  };

  void Learn(const StatePtr& state);
  void TellProof();
  [[nodiscard]] bool CoordinatesIt() const;
  void RaiseMarks(const ProtectionMarks& told);
  void TakeRefusals(const v1::State& state);
  void TakeProgress(const v1::State& state);
  void KeepWaiting(Rank rank, Seat& seat);
  [[nodiscard]] bool Named(Ticket ticket) const;
  [[nodiscard]] bool FromItsCoordinator(const v1::State& state) const;
  void Ask(const v1::State& state);
  void TellHigher(const v1::State& state);
  [[nodiscard]] uint64_t NextNumber() { return context_.config.numbers->Next(); }
  [[nodiscard]] ReporterId Self() const;
  [[nodiscard]] bool FactsAreCurrent() const;
  [[nodiscard]] std::string MissingRanks() const;
  [[nodiscard]] std::string WhoStandsStill() const;

  Context& context_;
  bool started_ = false;
  bool resending_ = false;
  bool quiet_ = false;
  uint64_t resend_key_ = 0;  // of the timer that goes on
  uint64_t unheard_ = 0;     // resend timers since the last STATE
  AttemptId seen_ = 0;
  uint64_t region_id_ = 0;
  AttemptId lost_ = 0;
  StatePtr state_;  // the last one heard of attempt `seen_`
  // Of the newest STATE(LOAD): its attempt, and how far it was, as its coordinator's incarnation counts.
  AttemptId loads_ = 0;
  uint64_t counted_by_ = 0;
  uint64_t progress_ = 0;
  SnapshotId watermark_;
  StepId floor_ = 0;
  ProtectionMarks marks_;
  KeptMarks kept_;  // by the process before this one
  std::map<Rank, Seat> seats_;
  std::optional<CopiesChanged> copies_;  // none: nobody speaks of copies here
  Prover prover_;
};

}  // namespace ckptd::job

#endif  // CKPTD_DAEMON_JOB_MEMBER_H_
