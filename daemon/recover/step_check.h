// Reading a committed step back: whole (before its predecessor may go, or for ckptctl verify) or one rank of it (into a
// slot, or to a client). Everything is checked against manifest, sidecar and chunk checksums while it is read.
//
// Blocks as long as the storage does; from an executor thread.
#ifndef CKPTD_DAEMON_RECOVER_STEP_CHECK_H_
#define CKPTD_DAEMON_RECOVER_STEP_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/storage/checked_read.h"
#include "daemon/storage/store.h"
#include "proto/ckptd/v1/manifest.pb.h"

namespace ckptd {

// Every byte of every rank; the headers must be those that the trainer registered. With options.on_bad, damage is told
// there and the rest is still read; the status is then an error only when the storage did not answer or the manifest is
// gone. options.sink is not called.
[[nodiscard]] absl::Status CheckStep(Store& store, const std::string& job, const SnapshotId& id,
                                     const CheckedReadOptions& options);

// The same of one rank: sidecar and images. CORRUPT too where the step is not one of `world_size` ranks; 0 = of any
// number.
[[nodiscard]] absl::Status CheckStoredRank(Store& store, const std::string& job, const SnapshotId& id, Rank rank,
                                           const CheckedReadOptions& options, uint32_t world_size = 0);

// The sidecar of one rank, bound by the commit.
[[nodiscard]] absl::StatusOr<v1::Sidecar> CommittedSidecar(Store& store, const std::string& job, const SnapshotId& id,
                                                           Rank rank);

// The headers of the rank's images, one after the other, as a layout is made of them. CORRUPT when they are not those
// that the trainer registered; of a sidecar that does not tell, the fetch that follows checks the chunks.
[[nodiscard]] absl::StatusOr<std::string> ReadHeaders(Store& store, const std::string& job, const v1::Sidecar& sidecar,
                                                      uint64_t max_bytes);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_RECOVER_STEP_CHECK_H_
