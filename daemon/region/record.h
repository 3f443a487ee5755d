// The record of a sealed slot: who it is and the CRC of each chunk. In the ctl file it is a RecordHead followed by the
// CRC list, under its own CRC; it counts only while the slot's state word says SEALED with the record's epoch.
// Pure functions, any thread.
#ifndef CKPTD_DAEMON_REGION_RECORD_H_
#define CKPTD_DAEMON_REGION_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/region/superblock.h"
#include "proto/local/region.h"

namespace ckptd::region {

// A record in private memory, with what is needed to read the slot it describes. Immutable once made.
struct SlotRecord {
  RecordHead head{};
  std::vector<uint32_t> chunk_crcs;
  uint64_t slot_bytes = 0;
  uint64_t chunk_bytes = 0;

  [[nodiscard]] SnapshotId id() const { return {head.attempt, head.step}; }
  [[nodiscard]] uint64_t ChunkLength(size_t chunk) const;  // all of chunk_bytes, but for the last one
};

// The caller gives identity and times in `head`; magic, sizes, layout and CRC are filled in. INVALID_ARGUMENT when
// `chunk_crcs` has another length than the layout has chunks, or the identity is incomplete.
[[nodiscard]] absl::StatusOr<SlotRecord> MakeRecord(const CtlHead& ctl, RecordHead head,
                                                    std::vector<uint32_t> chunk_crcs);

// `bytes`: the record area of one slot, copied out. CORRUPT unless all of it belongs to `ctl` and to `epoch`.
[[nodiscard]] absl::StatusOr<SlotRecord> ParseRecord(const CtlHead& ctl, std::span<const std::byte> bytes, Epoch epoch);

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_RECORD_H_
