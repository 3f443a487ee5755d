// The effects of the job machine, one overload each. Storage operations run on the record executor (those of deletion
// on the chore executor) and answer with the event named in room job.
#include <atomic>
#include <chrono>
#include <memory>
#include <type_traits>
#include <utility>

#include "daemon/app/job_runner.h"
#include "daemon/app/job_storage.h"
#include "daemon/app/peer_links.h"
#include "daemon/app/storage_watch.h"
#include "daemon/base/failpoint.h"

namespace ckptd {
namespace {

// Its success shows that the storage can be written.
template <typename Request>
constexpr bool kWrites = std::is_same_v<Request, job::CreateAttempt> || std::is_same_v<Request, job::CreateDecision> ||
                         std::is_same_v<Request, job::CreateManifest> || std::is_same_v<Request, job::PutMarker>;

}  // namespace

struct JobEffects {
  JobRunner& runner;

  // The answer is an event with a `status` and an `op`. When `ended` turns true, nobody waits for it.
  template <typename Request>
  void Ask(Executor& executor, Store& store, const Request& request,
           const JobRunner::EndedFlag& ended = nullptr) const {
    JobRunner* self = &runner;
    Services& services = runner.services_;
    JobStorage storage(store, services.metrics, self->name(), ended.get());
    using Answer = decltype(storage(request));
    using Result = absl::StatusOr<Answer>;
    auto answered = self->scope_.Bind([self](Answer answer) {
      if (!answer.status.ok()) Log(kWarning, "job.storage").Job(self->name()).Error(answer.status);
      self->Post(std::move(answer));
    });
    ++*self->asking_;
    RunAsync<Result>(
        services.loop, executor,
        [storage = std::move(storage), request, ended]() -> Result { return storage(request); },
        [&services, answered, asking = self->asking_, op = request.op, ended](Result ran) mutable {
          --*asking;
          if (ended != nullptr && *ended) return;
          Answer answer;
          if (ran.ok())
            answer = *std::move(ran);
          else
            answer.status = ran.status();
          services.storage_watch.Answered(answer.status, kWrites<Request>);
          answer.op = op;
          answered(std::move(answer));
        });
  }

  void operator()(const job::PersistSeen& e) const {
    runner.region_.journal().SetSeen(e.attempt);
    CKPTD_FP("job.after_seen");
  }
  void operator()(const job::PersistMarks& e) const { runner.region_.journal().Raise(e.marks); }
  void operator()(const job::ForwardState& e) const { runner.Forward(e.state); }
  void operator()(const job::SendState& e) const {
    if (e.agent == runner.services_.agent_id) return runner.Post(job::StateReceived{e.state});
    runner.services_.links.Send(e.agent, e.state);
  }
  void operator()(const job::SendReport& e) const {
    if (e.agent == runner.services_.agent_id) return runner.Post(job::ReportReceived{e.report});
    runner.services_.links.Send(e.agent, e.report);
  }
  void operator()(const job::Refuse& e) const {
    RankRunner* rank = runner.FindRank(e.rank);
    if (rank == nullptr) return;
    SessionId session = runner.services_.claims.SessionOf(runner.name(), e.rank, e.ticket);
    absl::Status error = Error(e.code, e.message);
    Log(kWarning, "restore.refused").Job(runner.name()).Rank(e.rank).Error(error);
    runner.services_.server.SendError(session, MessageType::kJoin, error);
    runner.PostToRank(e.rank, snapshot::Withdrawn{e.ticket});
    if (e.code == ErrorCode::JOB_OWNED) ForgetLater();
  }
  // It is another user's, so its name must not stay taken by who asked for it here. Unless memory holds a snapshot of
  // theirs (records of older agents name no user, storage.root may have changed): nothing is removed for a refusal.
  void ForgetLater() const {
    const Services& services = runner.services_;
    services.loop.After(Nanos(0), [&services, job = runner.name(), uid = runner.region_.journal().uid()] {
      const region::JobRegion* memory = services.region.FindJob(job);
      if (memory == nullptr || !memory->IsEmptyOf(uid)) return;  // forgotten, and perhaps its owner's by now
      absl::Status forgotten = services.forget_job(job);
      if (!forgotten.ok()) Log(kWarning, "job.forget").Job(job).Error(forgotten);
    });
  }
  void operator()(const job::KeepWaiting& e) const {
    PatienceMessage message{};
    message.ticket = e.ticket;
    message.patience_ms = static_cast<uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(e.patience).count());
    const SessionId session = runner.services_.claims.SessionOf(runner.name(), e.rank, e.ticket);
    runner.services_.server.Send(session, MessageType::kPatience, message);
  }
  void operator()(const job::AcceptJoin& e) const {
    if (RankRunner* rank = runner.FindRank(e.rank)) rank->Feed(snapshot::Attached{e.process, e.ticket, 0});
  }
  void operator()(const job::StartTimer& e) const {
    JobRunner* self = &runner;
    auto id = std::make_shared<Loop::TimerId>();
    *id = runner.services_.loop.After(e.after, [self, e, id] {
      self->timers_.erase(*id);
      if (e.kind == job::TimerKind::kJoin) TellOfSilence(*self, e.key);
      self->Post(job::TimerFired{e.kind, e.key});
    });
    runner.timers_.insert(*id);
    if (e.kind == job::TimerKind::kJoin) KeepJoinTimer(e.rank, *id);
  }
  // One for each rank: who joins and leaves again and again leaves no timers behind.
  void KeepJoinTimer(Rank rank, Loop::TimerId id) const {
    const auto [before, fresh] = runner.join_timers_.try_emplace(rank, id);
    if (fresh) return;
    runner.services_.loop.CancelTimer(before->second);
    runner.timers_.erase(before->second);
    before->second = id;
  }
  // The patience of one restore() is over; if the storage has been silent for much of it, that is the reason.
  static void TellOfSilence(JobRunner& runner, Ticket ticket) {
    constexpr Nanos kSuspicious = std::chrono::seconds(1);
    auto silence = runner.services_.calls.Longest(/*awaited=*/true);
    if (silence && silence->since > kSuspicious) runner.Post(job::StorageHangs{ticket, silence->ToString()});
  }

  // What nobody waits for: deletion, which an attempt must never stand behind.
  // One of a job: it reads a whole image, and there are few threads for the chores of all jobs.
  void operator()(const job::VerifyRank& e) const {
    runner.EndVerification();
    runner.verification_ended_ = std::make_shared<std::atomic<bool>>(false);
    Ask(runner.services_.chore_work, runner.services_.store, e, runner.verification_ended_);
  }
  void operator()(const job::EndVerification&) const { runner.EndVerification(); }
  void operator()(const job::PutMarker& e) const { Chore(e); }
  void operator()(const job::DeleteStep& e) const { Chore(e); }
  void operator()(const job::LookAtPin& e) const { Chore(e); }
  void operator()(const job::PruneRecords& e) const { Chore(e); }
  template <typename Request>
  void Chore(const Request& e) const {
    Ask(runner.services_.chore_work, runner.services_.store, e);
  }
  void operator()(const job::CreateDecision& e) const {
    for (const v1::SkippedStep& skipped : e.decision.skipped())
      Log(kWarning, "restore.skipped")
          .Job(runner.name())
          .Snapshot({skipped.snapshot().attempt(), skipped.snapshot().step()})
          .Field("error", skipped.reason());
    Ask(runner.services_.record_work, runner.services_.restore_store, e);
  }
  template <typename Record>  // all others: small, and restore() may wait for them
  void operator()(const Record& e) const {
    Ask(runner.services_.record_work, runner.services_.restore_store, e);
  }
  void operator()(const job::DeleteEnded& e) const {
    auto found = runner.deletions_.find(e.request);
    if (found == runner.deletions_.end()) return;
    JobRunner::DeleteDone done = std::move(found->second);
    runner.deletions_.erase(found);
    done(e.status);
  }
};

void JobRunner::Execute(const job::Effects& effects) {
  for (const job::Effect& effect : effects) {
    if (LogEnabled(kDebug)) Log(kDebug, "job.effect").Job(name()).Field("effect", job::ToString(effect));
    std::visit(JobEffects{*this}, effect);
  }
}

}  // namespace ckptd
