// Pin, Unpin and Gc: what stays and what goes.
#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/app/admin_commands.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"
#include "daemon/format/paths.h"
#include "daemon/persist/records_io.h"

namespace ckptd {
namespace {

constexpr Nanos kTemporaryAge = std::chrono::hours(1);

absl::StatusOr<SnapshotId> SetPin(AdminContext& context, const AdminCall& call, const v1::Target& target, bool pin,
                                  bool* was) {
  const std::string& job = target.job();
  CKPTD_ASSIGN_OR_RETURN(Catalog catalog, ReadCatalog(context, call, job, nullptr));
  CKPTD_RETURN_IF_ERROR(catalog.storage);
  CKPTD_ASSIGN_OR_RETURN(const CatalogStep* step, FindStep(catalog, target));
  if (pin && !step->restorable()) {
    return Error(ErrorCode::REFUSED, absl::StrCat("job ", job, ": step ", step->id.step,
                                                  step->deleting ? " is being deleted" : " is whole nowhere"));
  }
  *was = step->stored && step->stored->pinned;
  if (*was != pin) CKPTD_RETURN_IF_ERROR(SetPinned(context.store, job, step->id, pin));
  CKPTD_RETURN_IF_ERROR(TellPin(context, job, {step->id}, pin));
  return step->id;
}

// Each verdict's outcome; steps that retention keeps have none.
std::map<SnapshotId, absl::Status> Apply(AdminContext& context, const AdminCall& call, const std::string& job,
                                         const std::vector<RetentionVerdict>& verdicts) {
  std::vector<SnapshotId> victims;
  for (const RetentionVerdict& verdict : verdicts) {
    if (verdict.goes) victims.push_back(verdict.step->id);
  }
  (void)TellPin(context, job, victims, false);  // as listed just now
  return DeleteSteps(context, call, job, victims, /*take_over=*/false);
}

void ApplyToJob(AdminContext& context, const AdminCall& call, const Catalog& catalog, const RetentionConfig& retention,
                bool dry_run, v1::GcResponse& response) {
  const std::vector<RetentionVerdict> verdicts = ApplyRetention(catalog, retention);
  std::map<SnapshotId, absl::Status> outcomes;
  if (!dry_run) outcomes = Apply(context, call, catalog.job, verdicts);
  for (const RetentionVerdict& verdict : verdicts) {
    v1::RemovedEntry entry = ToEntry(catalog.job, *verdict.step, verdict.reason);
    const auto outcome = outcomes.find(verdict.step->id);
    const bool stays = outcome != outcomes.end() && !outcome->second.ok();
    if (stays) entry.set_reason(absl::StrCat(verdict.reason, "; but: ", outcome->second.message()));
    *(verdict.goes && !stays ? response.add_removed() : response.add_kept()) = std::move(entry);
  }
}

void SayOfStorage(const std::string& job, v1::RemovedEntry& entry, absl::string_view reason) {
  entry.set_job(job);
  entry.set_source("storage");
  entry.set_reason(std::string(reason));
}

// With the next step: where there is no room for one file more, gc itself can make none.
std::string WhyLeftoversStay(const absl::Status& status) {
  const bool full = CodeOf(status) == ErrorCode::STORAGE_FULL;
  return absl::StrCat("temporary files of writers that died: ", status.message(), "; ",
                      full ? "make room with ckptctl rm, then ckptctl gc again" : InfoOf(CodeOf(status)).next_step);
}

// What crashed writers left beside the steps.
void RemoveLeftovers(AdminContext& context, const Catalog& catalog, v1::GcResponse& response) {
  std::vector<std::string> directories = {catalog.job, AttemptsPath(catalog.job)};
  for (const CatalogStep& step : catalog.steps) {
    if (step.stored) directories.push_back(StepPath(catalog.job, step.id));
  }
  size_t removed = 0;
  for (const std::string& directory : directories) {
    const absl::StatusOr<size_t> here = context.store.RemoveTemporary(directory, kTemporaryAge);
    removed += here.value_or(0);
    if (!here.ok()) SayOfStorage(catalog.job, *response.add_kept(), WhyLeftoversStay(here.status()));
  }
  if (removed == 0) return;
  SayOfStorage(catalog.job, *response.add_removed(), absl::StrCat(removed, " temporary files of writers that died"));
}

// Memory of a job that nobody uses and whose snapshots are all on storage. It makes the next start fast, so it only
// goes when the operator named the job.
void ReclaimMemory(AdminContext& context, const std::string& job, bool named, bool dry_run, v1::GcResponse& response) {
  v1::RemovedEntry entry;
  bool removed = false;
  absl::Status ran = context.gate.Run([&] {
    region::JobRegion* memory = context.agent.services().region.FindJob(job);
    if (memory == nullptr) return;
    region::JobFacts facts = memory->Facts();
    if (LookAtJob(context.agent, job).in_use) return;
    // Nothing to give back, and what is held for others is only told of by a job that is known.
    if (facts.bytes == 0 && context.agent.services().region.peers().Holds(job)) return;
    entry.set_job(job);
    entry.set_bytes(facts.bytes);
    entry.set_source("region");
    entry.set_reason("memory of a job that nobody uses; all of it is on storage");
    if (facts.unpersisted != 0) {
      entry.set_reason(
          absl::StrCat("memory of a job that nobody uses, but ", facts.unpersisted, " snapshots are not on storage"));
    } else if (!named) {
      entry.set_reason(absl::StrCat(entry.reason(), ": ckptctl gc ", job, " gives it back"));
    } else {
      absl::Status forgotten = dry_run ? absl::OkStatus() : context.agent.ForgetJob(job);
      removed = forgotten.ok();
      if (!removed) entry.set_reason(std::string(forgotten.message()));
    }
  });
  if (ran.ok() && !entry.job().empty()) *(removed ? response.add_removed() : response.add_kept()) = std::move(entry);
}

// Those on storage, and those of which memory alone holds something for other nodes.
absl::StatusOr<std::vector<std::string>> GcJobs(AdminContext& context, const AdminCall& call,
                                                const v1::GcRequest& request) {
  if (!request.job().empty()) {
    CKPTD_RETURN_IF_ERROR(CheckJobName(request.job()));
    return std::vector<std::string>{request.job()};
  }
  if (request.force()) return Error(ErrorCode::INVALID_ARGUMENT, "--force wants JOB: the job must be named");
  CKPTD_ASSIGN_OR_RETURN(std::vector<std::string> jobs, StoredJobs(context, call));
  CKPTD_ASSIGN_OR_RETURN(auto held, context.gate.Call<std::vector<region::PeerJob>>(
                                        [&] { return context.agent.services().region.peers().Jobs(); }));
  for (const region::PeerJob& each : held) {
    if (std::find(jobs.begin(), jobs.end(), each.job) == jobs.end()) jobs.push_back(each.job);
  }
  return jobs;
}

}  // namespace

std::vector<RetentionVerdict> ApplyRetention(const Catalog& catalog, const RetentionConfig& retention) {
  std::vector<RetentionVerdict> verdicts;
  uint64_t newer = 0;  // committed ones on the lineage
  const uint64_t last = std::max<uint64_t>(retention.keep_last, 1);
  for (const CatalogStep& step : catalog.steps) {
    if (!step.stored) continue;
    const bool counts = step.committed() && step.on_lineage && !step.deleting;
    const bool every = retention.keep_every != 0 && step.id.step % retention.keep_every == 0;
    RetentionVerdict verdict{&step, false, ""};
    if (step.stored->pinned) {
      verdict.reason = "pinned";
    } else if (newer == 0) {
      verdict.reason = counts ? "the newest committed step" : "no newer committed step";
    } else if (!counts) {
      verdict.goes = true;
      verdict.reason = step.on_lineage ? "unfinished, and older than a committed step" : "a roll-back left it behind";
    } else if (newer < last) {
      verdict.reason = absl::StrCat("one of the last ", last, " (retention.keep_last)");
    } else if (every) {
      verdict.reason = absl::StrCat("divisible by ", retention.keep_every, " (retention.keep_every)");
    } else {
      verdict.goes = true;
      verdict.reason = absl::StrCat("older than the last ", last, " (retention.keep_last)");
    }
    newer += counts ? 1 : 0;
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

absl::Status TellPin(AdminContext& context, const std::string& job, const std::vector<SnapshotId>& steps, bool pinned) {
  return context.gate.Run([&] {
    JobRunner* runner = context.agent.FindJob(job);
    for (const SnapshotId& id : steps) {
      if (runner != nullptr) runner->Post(job::PinChanged{id, pinned});
    }
  });
}

absl::StatusOr<v1::PinResponse> PinStep(AdminContext& context, const AdminCall& call, const v1::PinRequest& request) {
  bool was = false;
  CKPTD_ASSIGN_OR_RETURN(SnapshotId id, SetPin(context, call, request.target(), true, &was));
  v1::PinResponse response;
  response.set_attempt(id.attempt);
  response.set_step(id.step);
  return response;
}

absl::StatusOr<v1::UnpinResponse> UnpinStep(AdminContext& context, const AdminCall& call,
                                            const v1::UnpinRequest& request) {
  bool was = false;
  CKPTD_ASSIGN_OR_RETURN(SnapshotId id, SetPin(context, call, request.target(), false, &was));
  v1::UnpinResponse response;
  response.set_attempt(id.attempt);
  response.set_step(id.step);
  response.set_was_pinned(was);
  return response;
}

absl::StatusOr<v1::GcResponse> CollectGarbage(AdminContext& context, const AdminCall& call,
                                              const v1::GcRequest& request) {
  CKPTD_ASSIGN_OR_RETURN(auto retention,
                         context.gate.Call<RetentionConfig>([&] { return context.agent.config().retention; }));
  CKPTD_ASSIGN_OR_RETURN(auto jobs, GcJobs(context, call, request));
  v1::GcResponse response;
  for (const std::string& job : jobs) {
    if (call.cancelled()) return Error(ErrorCode::CANCELLED, "nobody waits for it");
    auto catalog = ReadCatalog(context, call, job, nullptr);
    const absl::Status unread = catalog.ok() ? catalog->storage : catalog.status();
    if (!unread.ok() && !request.job().empty()) return unread;
    if (std::string why = WhyIncomplete(job, catalog); !why.empty()) response.add_errors(std::move(why));
    if (!unread.ok()) continue;
    ApplyToJob(context, call, *catalog, retention, request.dry_run(), response);
    if (!request.dry_run()) RemoveLeftovers(context, *catalog, response);
    ReclaimCopies(context, *catalog, request, response);
    ReclaimMemory(context, job, !request.job().empty(), request.dry_run(), response);
  }
  return response;
}

}  // namespace ckptd
