// What a block of parity was made of: the group, its code, and which bytes of which ranks. It stands behind the slot's
// record (proto/local/region.h) and counts only together with it. Coding is daemon/erasure's. Pure functions, any
// thread.
#ifndef CKPTD_DAEMON_REGION_PARITY_RECORD_H_
#define CKPTD_DAEMON_REGION_PARITY_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/local/region.h"

namespace ckptd::region {

// Immutable once made.
struct ParityRecord {
  uint32_t group = 0;
  uint32_t data = 0;                  // k of the code
  uint32_t parity = 0;                // m of the code
  uint32_t index = 0;                 // of this block's holder in the group, below k + m
  std::vector<ParityMember> members;  // 1 to k + m, in the order of the code; all of the record's step
};

// What a layout that holds parity needs as LayoutSpec::tail_bytes.
inline constexpr uint32_t kParityTailBytes = sizeof(ParityHead) + kMaxParityMembers * sizeof(ParityMember);

// As it stands behind `record`, which is complete. `group`: of the directory. INVALID_ARGUMENT when a number breaks a
// limit, a rank comes twice, or group or step are others.
[[nodiscard]] absl::StatusOr<std::vector<std::byte>> EncodeParity(const ParityRecord& parity, const RecordHead& record,
                                                                  uint32_t group);

// `bytes`: what follows the record in its area, copied out. CORRUPT unless all of it is whole and of `record`.
[[nodiscard]] absl::StatusOr<ParityRecord> ParseParity(std::span<const std::byte> bytes, const RecordHead& record,
                                                       uint32_t group);

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_PARITY_RECORD_H_
