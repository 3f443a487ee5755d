#include "daemon/persist/records_io.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/base/failpoint.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"
#include "daemon/storage/step_files.h"

namespace ckptd {
namespace {

// Each is made durable: what years have left goes in some attempts.
constexpr size_t kPrunedAtOnce = 500;

absl::Status OkIfExists(const absl::Status& status) {
  return absl::IsAlreadyExists(status) ? absl::OkStatus() : status;
}

absl::Status CreateMarker(Store& store, const std::string& job, const SnapshotId& id, AttemptId attempt) {
  std::string name = InStep(job, id, kDeletingName);
  absl::Status status = store.CreateExclusive(name, MarkerText(attempt));
  if (!absl::IsAlreadyExists(status)) return status;
  CKPTD_ASSIGN_OR_RETURN(auto step, ListStep(store, job, id));
  if (step.marker == attempt) return absl::OkStatus();
  if (step.marker > attempt && step.marker != ~AttemptId{0}) {
    return Error(ErrorCode::FENCED, absl::StrCat(name, " is of attempt ", step.marker, ", above ", attempt));
  }
  CKPTD_RETURN_IF_ERROR(store.Delete(name));
  return store.CreateExclusive(name, MarkerText(attempt));
}

}  // namespace

absl::Status CreateAttempt(Store& store, const v1::AttemptRecord& record) {
  CKPTD_FP("record.before_attempt");
  absl::Status status = store.CreateExclusive(AttemptPath(record.job(), record.attempt()), AttemptText(record));
  CKPTD_FP("record.after_attempt");
  return status;
}

absl::StatusOr<v1::DecisionRecord> CreateDecision(Store& store, const v1::DecisionRecord& record) {
  CKPTD_FP("record.before_decision");
  absl::Status status = store.CreateExclusive(DecisionPath(record.job(), record.attempt()), DecisionText(record));
  CKPTD_FP("record.after_decision");
  if (status.ok()) return record;
  if (!absl::IsAlreadyExists(status)) return status;
  CKPTD_ASSIGN_OR_RETURN(auto there, ReadDecision(store, record.job(), record.attempt()));
  if (there) return *std::move(there);
  return Error(ErrorCode::STORAGE_IO,
               absl::StrCat(DecisionPath(record.job(), record.attempt()), " exists but cannot be read"));
}

absl::Status CreateManifest(Store& store, const std::string& job, const SnapshotId& id, uint32_t world) {
  std::vector<std::string> texts;
  for (Rank rank = 0; rank < world; ++rank) {
    CKPTD_ASSIGN_OR_RETURN(std::string text,
                           store.ReadSmall(InStep(job, id, SidecarFileName(rank, world)), kMaxSidecarBytes));
    texts.push_back(std::move(text));
  }
  CKPTD_ASSIGN_OR_RETURN(auto manifest, MakeManifest(texts));
  if (manifest.job() != job || SnapshotId{manifest.attempt(), manifest.step()} != id) {
    return Error(ErrorCode::CORRUPT, absl::StrCat(StepPath(job, id), ": its sidecars speak of another snapshot"));
  }
  CKPTD_FP("commit.before_manifest");
  absl::Status status = store.CreateExclusive(InStep(job, id, kManifestName), ManifestText(std::move(manifest)));
  CKPTD_FP("commit.after_manifest");
  return OkIfExists(status);
}

absl::StatusOr<bool> PutMarker(Store& store, const std::string& job, const SnapshotId& id, AttemptId attempt) {
  CKPTD_RETURN_IF_ERROR(CreateMarker(store, job, id, attempt));
  CKPTD_ASSIGN_OR_RETURN(const bool pinned, IsPinned(store, job, id));
  if (!pinned) return true;
  CKPTD_ASSIGN_OR_RETURN(auto step, ListStep(store, job, id));
  if (!step.pinned || !step.committed) return true;  // what is left of a deletion that was cut off is no checkpoint
  CKPTD_RETURN_IF_ERROR(store.Delete(InStep(job, id, kDeletingName)));
  return false;
}

absl::Status DeleteStep(Store& store, const std::string& job, const SnapshotId& id) {
  CKPTD_FP("delete.before_manifest");
  CKPTD_RETURN_IF_ERROR(store.Delete(InStep(job, id, kManifestName)));
  CKPTD_FP("delete.after_manifest");
  CKPTD_ASSIGN_OR_RETURN(auto entries, store.List(StepPath(job, id)));
  bool foreign = false;
  for (const DirEntry& entry : entries) {
    bool ours = ParseRankFileName(entry.name).has_value() || entry.name == kPinnedName;
    foreign = foreign || (!ours && entry.name != kDeletingName);
    if (ours) CKPTD_RETURN_IF_ERROR(store.Delete(InStep(job, id, entry.name)));
  }
  CKPTD_FP("delete.after_files");
  CKPTD_ASSIGN_OR_RETURN(size_t temporary, store.RemoveTemporary(StepPath(job, id), Nanos(0)));
  CKPTD_RETURN_IF_ERROR(store.Delete(InStep(job, id, kDeletingName)));
  Log(kInfo, "storage.deleted").Job(job).Snapshot(id).Field("temporary_files", uint64_t{temporary});
  return foreign ? absl::OkStatus() : store.DeleteDirectory(StepPath(job, id));
}

absl::StatusOr<AttemptId> PruneRecords(Store& store, const std::string& job, AttemptId attempt,
                                       const std::vector<AttemptId>& decisions) {
  CKPTD_ASSIGN_OR_RETURN(auto entries, store.List(AttemptsPath(job)));
  AttemptId newest = 0;
  const std::set<AttemptId> needless(decisions.begin(), decisions.end());
  std::map<AttemptId, std::vector<std::string>> names;
  for (const DirEntry& entry : entries) {
    const std::optional<AttemptId> record = ParseAttemptFileName(entry.name);
    const std::optional<AttemptId> decided = ParseDecisionFileName(entry.name);
    if (record) newest = std::max(newest, *record);
    if (record && *record < attempt) names[*record].push_back(AttemptPath(job, *record));
    if (decided && needless.count(*decided) != 0) names[*decided].push_back(DecisionPath(job, *decided));
  }
  if (newest != attempt) return newest;
  size_t pruned = 0;
  for (const auto& [number, files] : names) {
    if (pruned >= kPrunedAtOnce) break;
    for (const std::string& name : files) CKPTD_RETURN_IF_ERROR(store.Delete(name));
    pruned += files.size();
  }
  if (pruned != 0) Log(kInfo, "storage.records_pruned").Job(job).Field("files", uint64_t{pruned});
  return newest;
}

size_t RemoveJobLeftovers(Store& store, const std::string& job) {
  size_t removed = store.RemoveLeftovers(AttemptsPath(job)).value_or(0);
  auto entries = store.List(job);
  if (!entries.ok()) return removed;
  for (const DirEntry& entry : *entries) {
    auto id = ParseStepDirectoryName(entry.name);
    if (!id || entry.type != FileType::kDirectory) continue;
    removed += store.RemoveLeftovers(StepPath(job, *id)).value_or(0);
    auto left = store.List(StepPath(job, *id));
    if (left.ok() && left->empty()) (void)store.DeleteDirectory(StepPath(job, *id));
  }
  return removed;
}

absl::StatusOr<bool> IsPinned(Store& store, const std::string& job, const SnapshotId& id) {
  const absl::Status pin = store.Stat(InStep(job, id, kPinnedName)).status();
  if (absl::IsNotFound(pin)) return false;
  if (!pin.ok()) return pin;
  return true;
}

absl::Status SetPinned(Store& store, const std::string& job, const SnapshotId& id, bool pinned) {
  const std::string name = InStep(job, id, kPinnedName);
  if (!pinned) return store.Delete(name);
  CKPTD_ASSIGN_OR_RETURN(const StepListing before, ListStep(store, job, id));
  CKPTD_RETURN_IF_ERROR(OkIfExists(store.CreateExclusive(name, "pinned\n")));
  CKPTD_ASSIGN_OR_RETURN(const StepListing after, ListStep(store, job, id));
  if (after.marker == 0 && after.committed >= before.committed) return absl::OkStatus();
  CKPTD_RETURN_IF_ERROR(store.Delete(name));
  return Error(ErrorCode::REFUSED, absl::StrCat("job ", job, ": step ", id.step, " is being deleted"));
}

}  // namespace ckptd
