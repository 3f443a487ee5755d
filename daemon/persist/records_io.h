// Writing the records of a job: attempts, decisions, commits, deletion. Each function is one step of protocol.md's
// procedures; which step comes next is decided by room job. All block as long as the storage does, and all may be
// repeated after a crash.
#ifndef CKPTD_DAEMON_PERSIST_RECORDS_IO_H_
#define CKPTD_DAEMON_PERSIST_RECORDS_IO_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/storage/store.h"
#include "proto/ckptd/v1/job.pb.h"
#include "proto/ckptd/v1/manifest.pb.h"

namespace ckptd {

// kAlreadyExists: another agent was faster.
[[nodiscard]] absl::Status CreateAttempt(Store& store, const v1::AttemptRecord& record);

// The decision as it stands afterwards, ours or the one that was there.
[[nodiscard]] absl::StatusOr<v1::DecisionRecord> CreateDecision(Store& store, const v1::DecisionRecord& record);

// The commit: from the sidecars of all ranks. OK also when the manifest was there with the same content. NOT_FOUND: a
// sidecar is missing.
[[nodiscard]] absl::Status CreateManifest(Store& store, const std::string& job, const SnapshotId& id, uint32_t world);

// Deletion, in this order: PutMarker, (room job checks that the attempt is still newest), DeleteStep.
// A marker left by a crashed deleter is taken over when it is of a lower attempt. False: somebody pinned the step,
// maybe on another node, and it has no marker now. (Who marks and who pins both write first and look then: one of them
// sees the other.)
[[nodiscard]] absl::StatusOr<bool> PutMarker(Store& store, const std::string& job, const SnapshotId& id,
                                             AttemptId attempt);
// Manifest, then sidecars and images, the marker last, then the directory. Foreign names stay, and so does a directory
// that holds one.
[[nodiscard]] absl::Status DeleteStep(Store& store, const std::string& job, const SnapshotId& id);

// These decisions and all attempt records below `attempt`, the lowest first, up to some hundreds at a time. Nothing
// when `attempt` is not the newest; the newest is returned. Which decisions nobody needs, room job says; it also says
// why no order and no crash between matters.
[[nodiscard]] absl::StatusOr<AttemptId> PruneRecords(Store& store, const std::string& job, AttemptId attempt,
                                                     const std::vector<AttemptId>& decisions);

// Temporary files that earlier, killed processes of this agent left anywhere in the job, and step directories that are
// empty without them. Best effort; returns how many files went.
size_t RemoveJobLeftovers(Store& store, const std::string& job);

[[nodiscard]] absl::StatusOr<bool> IsPinned(Store& store, const std::string& job, const SnapshotId& id);
// REFUSED, and not pinned: the step is being deleted.
[[nodiscard]] absl::Status SetPinned(Store& store, const std::string& job, const SnapshotId& id, bool pinned);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_PERSIST_RECORDS_IO_H_
