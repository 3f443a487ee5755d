// Reading snapshots out of a region with no agent: no lock is taken, nothing is written. Meant for a node whose agent
// cannot run any more. Beside a living agent a slot may be freed and filled again under the reader: that shows as a
// CRC mismatch, never as wrong bytes. Any thread.
#ifndef CKPTD_DAEMON_REGION_SALVAGE_H_
#define CKPTD_DAEMON_REGION_SALVAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/os/files.h"
#include "daemon/region/scan.h"
#include "daemon/region/slot_file.h"

namespace ckptd::region {

struct SalvageSnapshot {
  std::string job;
  uint32_t uid = 0;
  Rank rank = 0;
  bool copy = false;  // the rank ran on another node
  uint32_t world = 0;
  std::vector<ImageExtent> images;
  std::shared_ptr<const SlotRecord> record;
  uint64_t flags = 0;
  std::string rank_dir;
  uint64_t file_id = 0;
  uint64_t slot_file_bytes = 0;
};

// Sealed snapshots with a good record, by job, rank, attempt, step; of one that is here twice the rank's own comes
// first, then the copy for another node. Their bytes have not been read. Parity is in no snapshot.
[[nodiscard]] absl::StatusOr<std::vector<SalvageSnapshot>> ListSalvage(Files& files, const std::string& dir);

// Calls `sink` with image `image`'s bytes in order, in pieces of at most one chunk, each of which matched its CRC.
// CORRUPT at the first that does not; an error of `sink` ends it too.
[[nodiscard]] absl::Status ReadSalvage(Files& files, const SalvageSnapshot& snapshot, size_t image,
                                       const std::function<absl::Status(std::span<const std::byte>)>& sink);

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_SALVAGE_H_
