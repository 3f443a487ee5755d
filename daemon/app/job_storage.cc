#include "daemon/app/job_storage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"
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
  out.newer = step.newer;
  out.created_unix_ns = step.created_unix_ns;
  return out;
}

// Of a step that has a manifest, damaged or not, or the sidecars of all ranks. 0: it is remains.
absl::StatusOr<uint32_t> RanksOfWhole(Store& store, const std::string& job, const SnapshotId& id) {
  CKPTD_ASSIGN_OR_RETURN(const StepListing step, ListStep(store, job, id));
  const bool manifest = step.committed || !step.damage.empty();
  const bool all = step.world != 0 && step.sidecars.size() == step.world;
  return manifest || all ? std::max(step.world, 1u) : 0;
}

}  // namespace

job::NewestRead JobStorage::operator()(const job::ReadNewest& request) const {
  job::NewestRead read;
  read.op = request.op;
  auto newest = NewestAttempt(store_, job_);
  read.status = newest.status();
  if (!newest.ok() || *newest == 0) return read;
  auto record = ReadAttempt(store_, job_, *newest);
  // Pruned since it was listed: a higher attempt is there, and was loaded.
  if (CodeOf(record.status()) == ErrorCode::NOT_FOUND) {
    const auto again = NewestAttempt(store_, job_);
    if (again.ok() && *again > *newest) return (*this)(request);
  }
  auto decision = ReadDecision(store_, job_, *newest);
  read.status = record.ok() ? decision.status() : record.status();
  // Whoever wrote it may have been killed before its name was durable, and this coordinator goes on from it: a decision
  // that a power failure takes back takes every step of its attempt off the history.
  if (read.status.ok()) read.status = store_.Confirm(AttemptPath(job_, *newest));
  if (!read.status.ok()) return read;
  read.found = true;
  read.record = *std::move(record);
  read.decided = decision->has_value();
  if (read.decided) read.decision = **std::move(decision);
  return read;
}

job::AttemptCreated JobStorage::operator()(const job::CreateAttempt& request) const {
  return {request.op, CreateAttempt(store_, request.record)};
}

job::Listed JobStorage::operator()(const job::List& request) const {
  job::Listed listed;
  listed.op = request.op;
  auto listing = ListJob(store_, job_, request.before);
  listed.status = listing.status();
  if (!listing.ok()) return listed;
  listed.decisions = std::move(listing->decisions);
  listed.unreadable = std::move(listing->unreadable);
  listed.newest = listing->newest_attempt;
  for (const StepListing& step : listing->steps) {
    if (!step.damage.empty()) Log(kError, "storage.damaged").Job(job_).Snapshot(step.id).Field("error", step.damage);
    listed.steps.push_back(ToStored(step));
  }
  return listed;
}

job::DecisionCreated JobStorage::operator()(const job::CreateDecision& request) const {
  job::DecisionCreated answer;
  answer.op = request.op;
  auto stands = CreateDecision(store_, request.decision);
  answer.status = stands.status();
  if (stands.ok()) answer.decision = *std::move(stands);
  return answer;
}

job::ManifestCreated JobStorage::operator()(const job::CreateManifest& request) const {
  auto step = ListStep(store_, job_, request.id);
  if (!step.ok()) return {request.op, step.status()};
  if (step->world != 0 && step->world != request.world_size) {
    return {request.op, Error(ErrorCode::CORRUPT,
                              absl::StrCat(StepPath(job_, request.id), " has files of ", step->world,
                                           " ranks, and attempt ", request.id.attempt, " is of ", request.world_size))};
  }
  // Its name may not be durable: whoever gave it was killed before the fsync, or heard that it failed.
  if (step->committed) return {request.op, store_.Confirm(InStep(job_, request.id, kManifestName))};
  return {request.op, CreateManifest(store_, job_, request.id, request.world_size)};
}

job::NewestChecked JobStorage::operator()(const job::CheckNewest& request) const {
  auto newest = NewestAttempt(store_, job_);
  return {request.op, newest.status(), newest.value_or(0)};
}

job::StepVerified JobStorage::operator()(const job::VerifyStep& request) const {
  if (cancel_ != nullptr && *cancel_) return {request.op, Error(ErrorCode::CANCELLED, "nobody waits for it")};
  CheckedReadOptions options;
  options.cancel = cancel_;
  absl::Status status = CheckStep(store_, job_, request.id, options);
  if (CodeOf(status) == ErrorCode::CORRUPT) metrics_.verify_failures.With({"storage"}).Add();
  return {request.op, std::move(status)};
}

job::RankVerified JobStorage::operator()(const job::VerifyRank& request) const {
  if (cancel_ != nullptr && *cancel_) return {request.op, Error(ErrorCode::CANCELLED, "nobody waits for it")};
  CheckedReadOptions options;
  options.cancel = cancel_;
  uint64_t bytes = 0;
  options.progress = [&bytes](uint64_t done) { bytes = done; };
  absl::Status status = CheckStoredRank(store_, job_, request.id, request.rank, options, request.world_size);
  metrics_.proven_bytes.With({}).Add(static_cast<double>(bytes));
  if (CodeOf(status) == ErrorCode::CORRUPT) metrics_.verify_failures.With({"storage"}).Add();
  return {request.op, std::move(status)};
}

job::MarkerPut JobStorage::operator()(const job::PutMarker& request) const {
  if (request.remains) {
    const absl::StatusOr<uint32_t> whole = RanksOfWhole(store_, job_, request.id);
    if (!whole.ok() || *whole != 0) return {request.op, whole.status(), false, whole.value_or(0)};
  }
  const absl::StatusOr<bool> put = PutMarker(store_, job_, request.id, request.attempt);
  return {request.op, put.status(), put.ok() && !*put};
}

job::StepDeleted JobStorage::operator()(const job::DeleteStep& request) const {
  return {request.op, DeleteStep(store_, job_, request.id)};
}

job::PinLooked JobStorage::operator()(const job::LookAtPin& request) const {
  const absl::StatusOr<bool> pinned = IsPinned(store_, job_, request.id);
  return {request.op, pinned.status(), pinned.ok() && *pinned};
}

job::RecordsPruned JobStorage::operator()(const job::PruneRecords& request) const {
  auto newest = PruneRecords(store_, job_, request.attempt, request.decisions);
  return {request.op, newest.status(), newest.value_or(0)};
}

}  // namespace ckptd
