#include "daemon/storage/step_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/log.h"
#include "daemon/base/status_macros.h"
#include "daemon/format/paths.h"
#include "daemon/format/records.h"

namespace ckptd {
namespace {

constexpr int kMostListings = 5;

bool IsMissing(const absl::Status& status) { return CodeOf(status) == ErrorCode::NOT_FOUND; }

absl::Status Foreign(const std::string& name) {
  return Error(ErrorCode::CORRUPT, absl::StrCat(name, " speaks of another snapshot"));
}

absl::Status ReadMarker(Store& store, const std::string& name, StepListing* step) {
  CKPTD_ASSIGN_OR_RETURN(std::string text, store.ReadSmall(name, kMaxRecordBytes));
  auto attempt = ParseMarkerText(text, name);
  // A marker that cannot be read still says that somebody was deleting: no attempt is above it, so it is never void.
  step->marker = attempt.ok() ? *attempt : ~AttemptId{0};
  return absl::OkStatus();
}

// A damaged manifest is a fact about the step; a storage that does not answer is an error of the listing.
absl::Status LookAtManifest(Store& store, const std::string& job, StepListing* step) {
  auto manifest = ReadManifest(store, job, step->id);
  if (manifest.ok()) {
    step->committed = true;
    step->world = manifest->world_size();
    step->bytes = manifest->total_bytes();
    step->created_unix_ns = manifest->created_unix_ns();
    return absl::OkStatus();
  }
  ErrorCode code = CodeOf(manifest.status());
  if (code != ErrorCode::CORRUPT && code != ErrorCode::NEWER_VERSION) return manifest.status();
  step->newer = code == ErrorCode::NEWER_VERSION;
  step->damage = std::string(manifest.status().message());
  return absl::OkStatus();
}

absl::Status TakeEntry(Store& store, const std::string& job, const DirEntry& entry, StepListing* step) {
  if (entry.type == FileType::kDirectory) return absl::OkStatus();
  if (entry.name == kManifestName) return LookAtManifest(store, job, step);
  if (entry.name == kDeletingName) return ReadMarker(store, InStep(job, step->id, entry.name), step);
  if (entry.name == kPinnedName) step->pinned = true;
  auto file = ParseRankFileName(entry.name);
  if (file && file->sidecar && (step->world == 0 || step->world == file->world)) {
    step->world = file->world;
    step->sidecars.push_back(file->rank);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Sidecar> TakeSidecar(const std::string& text, const std::string& name, const std::string& job,
                                        const SnapshotId& id, Rank rank, uint32_t world) {
  CKPTD_ASSIGN_OR_RETURN(auto sidecar, ParseSidecar(text, name));
  bool same = sidecar.job() == job && SnapshotId{sidecar.attempt(), sidecar.step()} == id && sidecar.rank() == rank &&
              sidecar.world_size() == world;
  if (!same) return Foreign(name);
  return sidecar;
}

// By attempt. The newest below `before` comes first: it keeps its lineage, which is the history, so that the listing is
// nothing without it. Of an older one that is damaged there is only a name: what it said of the world size of its
// attempt, and that it chose a step, is missing, and who needs that looks at `unreadable`. Older ones that are gone
// nobody needs; false: the one below `before` is gone, since a higher attempt has pruned it.
absl::StatusOr<bool> AddDecisions(Store& store, const std::string& job, std::vector<AttemptId> attempts,
                                  AttemptId before, JobListing* listing, absl::Status* damage) {
  std::sort(attempts.begin(), attempts.end());
  bool kept = false;
  for (auto attempt = attempts.rbegin(); attempt != attempts.rend(); ++attempt) {
    auto decision = ReadDecision(store, job, *attempt);
    if (kept && CodeOf(decision.status()) == ErrorCode::CORRUPT) {
      if (listing->unreadable.empty()) *damage = decision.status();
      listing->unreadable.push_back(*attempt);
      continue;
    }
    if (!decision.ok()) return decision.status();
    if (!*decision && !kept && *attempt < before) return false;
    if (!*decision) continue;
    const bool keep = !kept && *attempt < before;
    kept = kept || keep;
    if (!keep) google::protobuf::RepeatedPtrField<v1::LineageEntry>().Swap((*decision)->mutable_lineage());
    listing->decisions.push_back(**std::move(decision));
  }
  std::reverse(listing->decisions.begin(), listing->decisions.end());
  return true;
}

// Each time that it is not there is the work of another attempt, which has loaded meanwhile.
absl::Status ListRecords(Store& store, const std::string& job, AttemptId before, JobListing* listing,
                         absl::Status* damage) {
  for (int tries = 0; tries < kMostListings; ++tries) {
    *listing = JobListing();
    *damage = absl::OkStatus();
    std::vector<AttemptId> decisions;
    CKPTD_ASSIGN_OR_RETURN(auto records, store.List(AttemptsPath(job)));
    for (const DirEntry& entry : records) {
      if (auto attempt = ParseAttemptFileName(entry.name)) {
        listing->newest_attempt = std::max(listing->newest_attempt, *attempt);
      } else if (auto decided = ParseDecisionFileName(entry.name)) {
        decisions.push_back(*decided);
      }
    }
    CKPTD_ASSIGN_OR_RETURN(bool whole, AddDecisions(store, job, std::move(decisions), before, listing, damage));
    if (whole) return absl::OkStatus();
  }
  return Error(ErrorCode::STORAGE_IO, absl::StrCat(AttemptsPath(job), ": decisions go while they are read"));
}

// Some decision above the marker chose the step: then no other is needed to know that the marker is void.
bool IsVoid(const StepListing& step, const std::vector<v1::DecisionRecord>& decisions) {
  return std::any_of(decisions.begin(), decisions.end(), [&](const v1::DecisionRecord& decision) {
    return decision.attempt() > step.marker && decision.parent().attempt() == step.id.attempt &&
           decision.parent().step() == step.id.step;
  });
}

// A damaged decision above a marker may be the one that made it void. Neither guess is safe: whoever takes the marker
// for valid deletes a step that a run went back to, and whoever takes it for void restores what is being deleted.
absl::Status CheckMarkers(const std::string& job, const JobListing& listing) {
  for (const StepListing& step : listing.steps) {
    if (step.marker == 0 || listing.unreadable.empty() || IsVoid(step, listing.decisions)) continue;
    const AttemptId above = listing.unreadable.front();  // the highest
    if (above <= step.marker) continue;
    return Error(
        ErrorCode::CORRUPT,
        absl::StrCat(DecisionPath(job, above), " is damaged, and only it can say whether step ", step.id.step,
                     " is still to be deleted. Put a copy of it back; or, if ", InStep(job, step.id, kManifestName),
                     " is there and the step is to stay, remove ", InStep(job, step.id, kDeletingName)));
  }
  return absl::OkStatus();
}

void TellUnreadable(const std::string& job, const JobListing& listing, const absl::Status& damage) {
  if (listing.unreadable.empty()) return;
  Log(kWarning, "storage.decision_damaged")
      .Job(job)
      .Error(damage)
      .Field("file", DecisionPath(job, listing.unreadable.front()))
      .Field("files", uint64_t{listing.unreadable.size()})
      .Field("text", "the job goes on without it; put a copy of the file back if there is one, and look at the disk");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListJobs(Store& store) {
  CKPTD_ASSIGN_OR_RETURN(auto entries, store.List(""));
  std::vector<std::string> jobs;
  for (const DirEntry& entry : entries) {
    if (entry.type == FileType::kDirectory && CheckJobName(entry.name).ok()) jobs.push_back(entry.name);
  }
  return jobs;
}

absl::StatusOr<JobListing> ListJob(Store& store, const std::string& job, AttemptId before) {
  JobListing listing;
  absl::Status damage;
  CKPTD_RETURN_IF_ERROR(ListRecords(store, job, before, &listing, &damage));
  CKPTD_ASSIGN_OR_RETURN(auto entries, store.List(job));
  for (const DirEntry& entry : entries) {
    auto id = ParseStepDirectoryName(entry.name);
    if (!id || entry.type != FileType::kDirectory) continue;
    CKPTD_ASSIGN_OR_RETURN(auto step, ListStep(store, job, *id));
    listing.steps.push_back(std::move(step));
  }
  CKPTD_RETURN_IF_ERROR(CheckMarkers(job, listing));
  TellUnreadable(job, listing, damage);
  return listing;
}

absl::StatusOr<StepListing> ListStep(Store& store, const std::string& job, const SnapshotId& id) {
  StepListing step;
  step.id = id;
  CKPTD_ASSIGN_OR_RETURN(auto entries, store.List(StepPath(job, id)));
  for (const DirEntry& entry : entries) {
    absl::Status status = TakeEntry(store, job, entry, &step);
    if (!status.ok() && !IsMissing(status)) return status;  // missing: deleted since it was listed
  }
  return step;
}

absl::StatusOr<AttemptId> NewestAttempt(Store& store, const std::string& job) {
  CKPTD_ASSIGN_OR_RETURN(auto records, store.List(AttemptsPath(job)));
  AttemptId newest = 0;
  for (const DirEntry& entry : records) newest = std::max(newest, ParseAttemptFileName(entry.name).value_or(0));
  return newest;
}

absl::StatusOr<v1::AttemptRecord> ReadAttempt(Store& store, const std::string& job, AttemptId attempt) {
  std::string name = AttemptPath(job, attempt);
  CKPTD_ASSIGN_OR_RETURN(std::string text, store.ReadSmall(name, kMaxRecordBytes));
  CKPTD_ASSIGN_OR_RETURN(auto record, ParseAttemptText(text, name));
  if (record.job() != job || record.attempt() != attempt) return Foreign(name);
  return record;
}

absl::StatusOr<std::optional<v1::DecisionRecord>> ReadDecision(Store& store, const std::string& job,
                                                               AttemptId attempt) {
  std::string name = DecisionPath(job, attempt);
  auto text = store.ReadSmall(name, kMaxRecordBytes);
  if (IsMissing(text.status())) return std::optional<v1::DecisionRecord>();
  if (!text.ok()) return text.status();
  CKPTD_ASSIGN_OR_RETURN(auto record, ParseDecisionText(*text, name));
  if (record.job() != job || record.attempt() != attempt) return Foreign(name);
  return std::optional<v1::DecisionRecord>(std::move(record));
}

absl::StatusOr<v1::Manifest> ReadManifest(Store& store, const std::string& job, const SnapshotId& id) {
  std::string name = InStep(job, id, kManifestName);
  CKPTD_ASSIGN_OR_RETURN(std::string text, store.ReadSmall(name, kMaxManifestBytes));
  CKPTD_ASSIGN_OR_RETURN(auto manifest, ParseManifest(text, name));
  if (manifest.job() != job || SnapshotId{manifest.attempt(), manifest.step()} != id) return Foreign(name);
  return manifest;
}

absl::StatusOr<v1::Sidecar> ReadSidecar(Store& store, const std::string& job, const SnapshotId& id, Rank rank,
                                        uint32_t world) {
  std::string name = InStep(job, id, SidecarFileName(rank, world));
  CKPTD_ASSIGN_OR_RETURN(std::string text, store.ReadSmall(name, kMaxSidecarBytes));
  return TakeSidecar(text, name, job, id, rank, world);
}

absl::StatusOr<v1::Sidecar> ReadCommittedSidecar(Store& store, const std::string& job, const v1::Manifest& manifest,
                                                 Rank rank) {
  SnapshotId id{manifest.attempt(), manifest.step()};
  std::string name = InStep(job, id, SidecarFileName(rank, manifest.world_size()));
  for (const v1::ManifestFile& file : manifest.files()) {
    if (file.rank() != rank) continue;
    CKPTD_ASSIGN_OR_RETURN(std::string text, store.ReadSmall(name, kMaxSidecarBytes));
    if (Crc32c(0, text.data(), text.size()) != file.sidecar_crc32c()) {
      return Error(ErrorCode::CORRUPT, absl::StrCat(name, " is not the one that was committed"));
    }
    return TakeSidecar(text, name, job, id, rank, manifest.world_size());
  }
  return Error(ErrorCode::NOT_FOUND, absl::StrCat(StepPath(job, id), " has no rank ", rank));
}

StoredRank ToStoredRank(const std::string& job, const v1::Sidecar& sidecar) {
  StoredRank rank;
  for (const v1::SidecarImage& image : sidecar.images()) {
    rank.parts.push_back({InStep(job, {sidecar.attempt(), sidecar.step()}, image.name()), image.bytes()});
  }
  rank.chunk_bytes = sidecar.chunk_bytes();
  rank.chunk_crcs.assign(sidecar.chunk_crc32c().begin(), sidecar.chunk_crc32c().end());
  return rank;
}

}  // namespace ckptd
