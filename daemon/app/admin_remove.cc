// Remove, and the deletions of Gc. A coordinator that lives here does it (room job): it knows what its run needs. When
// none does, room job's Removal opens an attempt that is never decided, and this thread carries out its requests.
#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/admin_commands.h"
#include "daemon/app/job_storage.h"
#include "daemon/base/status_macros.h"
#include "daemon/job/removal.h"

namespace ckptd {
namespace {

constexpr Nanos kDeleteTimeout = std::chrono::minutes(10);       // the successor is read back first
constexpr Nanos kToSayTimeout = std::chrono::milliseconds(500);  // before the client gives up

Nanos TimeFor(const AdminCall& call) {
  return std::min(kDeleteTimeout, std::max(Nanos(0), call.time_left() - kToSayTimeout));
}

struct Here {
  bool coordinated = false;
  bool trainers = false;
  bool opening = false;
  AttemptId seen = 0;
};

// Control thread.
Here LookAround(Agent& agent, const std::string& job) {
  Here here;
  JobRunner* runner = agent.FindJob(job);
  if (runner == nullptr) return here;
  const job::View view = runner->view();
  here.seen = view.seen;
  here.coordinated = view.phase == job::Phase::kLoad || view.phase == job::Phase::kRun;
  // An attempt that waits for its ranks and has no trainer waits for nobody: they died before it was decided.
  const bool rests = view.phase == job::Phase::kIdle || view.phase == job::Phase::kStopped;
  here.opening = !here.coordinated && !rests && view.phase != job::Phase::kGather;
  for (const auto& [number, rank] : runner->ranks()) here.trainers = here.trainers || rank->view().process != 0;
  return here;
}

absl::Status AskCoordinator(AdminContext& context, const std::string& job, const SnapshotId& id, Nanos timeout) {
  return context.gate.RunAsync(
      [&](ControlGate::Done done) {
        JobRunner* runner = context.agent.FindJob(job);
        if (runner == nullptr)
          return done(Error(ErrorCode::REFUSED, absl::StrCat("job ", job, " has left this agent")));
        runner->Delete(id, std::move(done));
      },
      timeout);
}

// Carries out the requests of a Removal, one after the other.
class Remover {
 public:
  Remover(AdminContext& context, const AdminCall& call, const std::string& job)
      : context_(context),
        call_(call),
        job_(job),
        storage_(context.store, context.agent.metrics(), job, &call.cancel_flag()) {}

  std::map<SnapshotId, absl::Status> Run(job::Removal removal) {
    job::Effects requests;
    removal.Begin(requests);
    while (!removal.ended() && !requests.empty()) {
      const job::Effect request = std::move(requests.front());
      requests.clear();
      removal.Step(std::visit([this](const auto& asked) { return Do(asked); }, request), requests);
    }
    return removal.results();
  }

 private:
  job::Event Do(const job::CreateAttempt& request) {
    const absl::Status free = NobodyRuns();
    if (!free.ok()) return job::AttemptCreated{request.op, free};
    Log(kInfo, "admin.remove").Job(job_).Field("attempt", request.record.attempt());
    return storage_(request);
  }
  template <typename Request>
  job::Event Do(const Request& request) {
    if constexpr (requires { storage_(request); }) {
      return storage_(request);
    } else {
      return job::TimerFired{};  // Removal asks for storage only
    }
  }

  // After the newest record was read: whoever joins from now on finds ours, or creates that number before us.
  absl::Status NobodyRuns() {
    if (call_.cancelled()) return Error(ErrorCode::CANCELLED, "nobody waits for it");
    CKPTD_ASSIGN_OR_RETURN(Here here, context_.gate.Call<Here>([&] { return LookAround(context_.agent, job_); }));
    if (!here.coordinated && !here.opening && !here.trainers) return absl::OkStatus();
    return Error(ErrorCode::REFUSED, absl::StrCat("job ", job_, ": a run is starting. Ask again when it trains"));
  }

  AdminContext& context_;
  const AdminCall& call_;
  const std::string job_;
  JobStorage storage_;
};

std::map<SnapshotId, absl::Status> AllOf(const std::vector<SnapshotId>& steps, const absl::Status& status) {
  std::map<SnapshotId, absl::Status> results;
  for (const SnapshotId& id : steps) results[id] = status;
  return results;
}

}  // namespace

std::map<SnapshotId, absl::Status> DeleteSteps(AdminContext& context, const AdminCall& call, const std::string& job,
                                               const std::vector<SnapshotId>& steps, bool take_over) {
  auto here = context.gate.Call<Here>([&] { return LookAround(context.agent, job); });
  if (!here.ok()) return AllOf(steps, here.status());
  if (!here->coordinated) {
    job::Config config;
    config.job = job;
    config.agent = context.agent.services().agent_id;
    return Remover(context, call, job).Run(job::Removal(std::move(config), {steps, here->seen, take_over}));
  }
  std::map<SnapshotId, absl::Status> results;
  for (const SnapshotId& id : steps) {
    if (call.cancelled()) return AllOf(steps, Error(ErrorCode::CANCELLED, "nobody waits for it"));
    results[id] = AskCoordinator(context, job, id, TimeFor(call));
  }
  return results;
}

v1::RemovedEntry ToEntry(const std::string& job, const CatalogStep& step, std::string reason) {
  v1::RemovedEntry entry;
  entry.set_job(job);
  entry.set_attempt(step.id.attempt);
  entry.set_step(step.id.step);
  entry.set_bytes(step.stored ? step.stored->bytes : 0);
  entry.set_source("storage");
  entry.set_reason(std::move(reason));
  return entry;
}

absl::StatusOr<v1::RemoveResponse> RemoveStep(AdminContext& context, const AdminCall& call,
                                              const v1::RemoveRequest& request) {
  const v1::Target& target = request.target();
  if (!target.has_step()) return Error(ErrorCode::INVALID_ARGUMENT, "rm wants JOB@STEP: the step must be named");
  CKPTD_ASSIGN_OR_RETURN(Catalog catalog, ReadCatalog(context, call, target.job(), nullptr));
  CKPTD_RETURN_IF_ERROR(catalog.storage);
  CKPTD_ASSIGN_OR_RETURN(const CatalogStep* step, FindStep(catalog, target));
  if (!step->stored) {
    return Error(ErrorCode::NOT_FOUND,
                 absl::StrCat("job ", target.job(), ": step ", target.step(), " is in memory only; it goes by itself"));
  }
  if (!step->stored->pinned) CKPTD_RETURN_IF_ERROR(TellPin(context, target.job(), {step->id}, false));
  const auto outcomes = DeleteSteps(context, call, target.job(), {step->id}, request.force());
  CKPTD_RETURN_IF_ERROR(outcomes.at(step->id));
  v1::RemoveResponse response;
  *response.mutable_removed() = ToEntry(target.job(), *step, "asked for");
  return response;
}

}  // namespace ckptd
