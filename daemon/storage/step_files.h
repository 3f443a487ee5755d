// What lies in the directory of one job on storage, read and checked: steps, their sidecars and manifests, attempts and
// decisions. Only names that room format makes are seen; anything else in the directory is nobody's business.
//
// All calls block as long as the storage does.
#ifndef CKPTD_DAEMON_STORAGE_STEP_FILES_H_
#define CKPTD_DAEMON_STORAGE_STEP_FILES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/storage/checked_read.h"
#include "daemon/storage/store.h"
#include "proto/ckptd/v1/job.pb.h"
#include "proto/ckptd/v1/manifest.pb.h"

namespace ckptd {

struct StepListing {
  SnapshotId id;
  uint32_t world = 0;          // 0 = no sidecar and no manifest tells it
  std::vector<Rank> sidecars;  // ranks whose sidecar is there, ascending
  bool committed = false;      // a manifest that is whole
  AttemptId marker = 0;        // the attempt that is deleting it, 0 = none
  bool pinned = false;
  uint64_t bytes = 0;           // of a committed step
  int64_t created_unix_ns = 0;  // of a committed step
  bool newer = false;           // the manifest is of a newer format: to be left alone
  std::string damage;           // why a manifest that is there does not count, empty = nothing
};

struct JobListing {
  std::vector<StepListing> steps;
  std::vector<v1::DecisionRecord> decisions;  // by attempt
  AttemptId newest_attempt = 0;               // highest attempt record
  std::vector<AttemptId> unreadable;          // whose decision is there, damaged, and left out
};

// Names of jobs on this storage, sorted.
[[nodiscard]] absl::StatusOr<std::vector<std::string>> ListJobs(Store& store);
// Complete, or an error: never a short answer. A job that is not there is empty. Of the decisions only the newest below
// `before` keeps its lineage: each names all attempts before it, so that together they grow with their square.
// An older decision that is damaged is left out and told, but where only it could say whether a marker is void.
[[nodiscard]] absl::StatusOr<JobListing> ListJob(Store& store, const std::string& job, AttemptId before = UINT64_MAX);
[[nodiscard]] absl::StatusOr<StepListing> ListStep(Store& store, const std::string& job, const SnapshotId& id);
[[nodiscard]] absl::StatusOr<AttemptId> NewestAttempt(Store& store, const std::string& job);
[[nodiscard]] absl::StatusOr<v1::AttemptRecord> ReadAttempt(Store& store, const std::string& job, AttemptId attempt);
// Empty when that attempt is not decided.
[[nodiscard]] absl::StatusOr<std::optional<v1::DecisionRecord>> ReadDecision(Store& store, const std::string& job,
                                                                             AttemptId attempt);

// CORRUPT when it is damaged or speaks of another snapshot; NOT_FOUND when absent.
[[nodiscard]] absl::StatusOr<v1::Manifest> ReadManifest(Store& store, const std::string& job, const SnapshotId& id);
[[nodiscard]] absl::StatusOr<v1::Sidecar> ReadSidecar(Store& store, const std::string& job, const SnapshotId& id,
                                                      Rank rank, uint32_t world);
// The same, and bound by the manifest: the sidecar's text must have the checksum that the commit recorded.
[[nodiscard]] absl::StatusOr<v1::Sidecar> ReadCommittedSidecar(Store& store, const std::string& job,
                                                               const v1::Manifest& manifest, Rank rank);

// The rank's files as ReadChecked takes them.
[[nodiscard]] StoredRank ToStoredRank(const std::string& job, const v1::Sidecar& sidecar);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_STEP_FILES_H_
