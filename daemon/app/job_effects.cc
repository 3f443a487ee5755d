// The effects of the job machine, one overload each. Storage operations run on the record executor (verification on the
// fetch executor) and answer with the event named in room job.
#include <utility>

#include "daemon/app/job_runner.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/status_macros.h"
#include "daemon/persist/records_io.h"
#include "daemon/recover/step_check.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

job::StoredStep ToStored(const StepListing& step) {
  job::StoredStep out;
  out.id = step.id;
  out.world_size = step.world;
  out.sidecars = static_cast<uint32_t>(step.sidecars.size());
  out.committed = step.committed;
  out.marker = step.marker;
  out.pinned = step.pinned;
  return out;
}

job::NewestRead ReadNewestRecord(Store& store, const std::string& name) {
  job::NewestRead read;
  auto newest = NewestAttempt(store, name);
  read.status = newest.status();
  if (!newest.ok() || *newest == 0) return read;
  auto record = ReadAttempt(store, name, *newest);
  auto decision = ReadDecision(store, name, *newest);
  read.status = record.ok() ? decision.status() : record.status();
  if (!read.status.ok()) return read;
  read.found = true;
  read.record = *std::move(record);
  read.decided = decision->has_value();
  if (read.decided) read.decision = **std::move(decision);
  return read;
}

job::Listed ListAll(Store& store, const std::string& name) {
  job::Listed listed;
  auto listing = ListJob(store, name);
  listed.status = listing.status();
  if (!listing.ok()) return listed;
  listed.decisions = std::move(listing->decisions);
  for (const StepListing& step : listing->steps) {
    if (!step.damage.empty()) Log(kError, "storage.damaged").Job(name).Snapshot(step.id).Field("error", step.damage);
    listed.steps.push_back(ToStored(step));
  }
  return listed;
}

}  // namespace

struct JobEffects {
  JobRunner& runner;

  // Answer is an event with a `status` and an `op`.
  template <typename Answer>
  void Async(Executor& executor, job::OpId op, std::function<Answer()> work) const {
    JobRunner* self = &runner;
    auto answer = std::make_shared<Answer>();
    RunAsync<absl::Status>(
        runner.services_.loop, executor,
        [answer, work = std::move(work)] {
          *answer = work();
          return absl::OkStatus();
        },
        [self, answer, op](const absl::Status& ran) {
          if (!ran.ok()) answer->status = ran;
          answer->op = op;
          if (!answer->status.ok()) Log(kWarning, "job.storage").Job(self->name()).Error(answer->status);
          self->Post(std::move(*answer));
        });
  }
  template <typename Answer>
  void Record(job::OpId op, std::function<absl::Status()> work) const {
    Async<Answer>(runner.services_.record_work, op, [work = std::move(work)] {
      Answer answer;
      answer.status = work();
      return answer;
    });
  }

  [[nodiscard]] Store& store() const { return runner.services_.store; }

  void operator()(const job::PersistSeen& e) const {
    runner.region_.journal().SetSeen(e.attempt);
    CKPTD_FP("job.after_seen");
  }
  void operator()(const job::ForwardState& e) const {
    runner.last_state_ = e.state;
    runner.metrics_.StateIs(*e.state);
    for (auto& [rank, machine] : runner.ranks_) machine->Feed(snapshot::JobState{e.state});
  }
  void operator()(const job::SendState& e) const {
    if (e.agent == runner.services_.agent_id) runner.Post(job::StateReceived{e.state});
  }
  void operator()(const job::SendReport& e) const {
    if (e.agent == runner.services_.agent_id) runner.Post(job::ReportReceived{e.report});
  }
  void operator()(const job::Refuse& e) const {
    RankRunner* rank = runner.FindRank(e.rank);
    if (rank == nullptr) return;
    SessionId session = runner.services_.claims.SessionOf(runner.name(), e.rank, e.ticket);
    absl::Status error = Error(e.code, e.message);
    Log(kWarning, "restore.refused").Job(runner.name()).Rank(e.rank).Error(error);
    runner.services_.server.SendError(session, MessageType::kJoin, error);
    runner.PostToRank(e.rank, snapshot::Withdrawn{e.ticket});
  }
  void operator()(const job::AcceptJoin& e) const {
    if (RankRunner* rank = runner.FindRank(e.rank)) rank->Feed(snapshot::Attached{e.process, e.ticket, 0});
  }
  void operator()(const job::StartTimer& e) const {
    JobRunner* self = &runner;
    runner.services_.loop.After(e.after, [self, e] { self->Post(job::TimerFired{e.kind, e.key}); });
  }

  void operator()(const job::ReadNewest& e) const {
    Async<job::NewestRead>(runner.services_.record_work, e.op,
                           [&store = store(), name = runner.name()] { return ReadNewestRecord(store, name); });
  }
  void operator()(const job::CreateAttempt& e) const {
    Record<job::AttemptCreated>(e.op, [&store = store(), record = e.record] { return CreateAttempt(store, record); });
  }
  void operator()(const job::List& e) const {
    Async<job::Listed>(runner.services_.record_work, e.op,
                       [&store = store(), name = runner.name()] { return ListAll(store, name); });
  }
  void operator()(const job::CreateDecision& e) const {
    Async<job::DecisionCreated>(runner.services_.record_work, e.op, [&store = store(), decision = e.decision] {
      job::DecisionCreated answer;
      auto stands = CreateDecision(store, decision);
      answer.status = stands.status();
      if (stands.ok()) answer.decision = *std::move(stands);
      return answer;
    });
  }
  void operator()(const job::CreateManifest& e) const {
    Record<job::ManifestCreated>(e.op, [&store = store(), name = runner.name(), id = e.id]() -> absl::Status {
      CKPTD_ASSIGN_OR_RETURN(auto step, ListStep(store, name, id));
      if (step.committed) return absl::OkStatus();
      return CreateManifest(store, name, id, step.world);
    });
  }
  void operator()(const job::CheckNewest& e) const {
    Async<job::NewestChecked>(runner.services_.record_work, e.op, [&store = store(), name = runner.name()] {
      job::NewestChecked answer;
      auto newest = NewestAttempt(store, name);
      answer.status = newest.status();
      if (newest.ok()) answer.newest = *newest;
      return answer;
    });
  }
  void operator()(const job::VerifyStep& e) const {
    AgentMetrics& metrics = runner.services_.metrics;
    Async<job::StepVerified>(runner.services_.fetch_work, e.op,
                             [&store = store(), &metrics, name = runner.name(), id = e.id] {
                               job::StepVerified answer;
                               answer.status = CheckStep(store, name, id, {});
                               bool bad = CodeOf(answer.status) == ErrorCode::CORRUPT;
                               if (bad) metrics.verify_failures.With({"storage"}).Add();
                               return answer;
                             });
  }
  void operator()(const job::PutMarker& e) const {
    Record<job::MarkerPut>(e.op, [&store = store(), name = runner.name(), id = e.id, attempt = e.attempt] {
      return PutMarker(store, name, id, attempt);
    });
  }
  void operator()(const job::RemoveMarker& e) const {
    Record<job::MarkerRemoved>(
        e.op, [&store = store(), name = runner.name(), id = e.id] { return RemoveMarker(store, name, id); });
  }
  void operator()(const job::DeleteStep& e) const {
    Record<job::StepDeleted>(
        e.op, [&store = store(), name = runner.name(), id = e.id] { return DeleteStep(store, name, id); });
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
