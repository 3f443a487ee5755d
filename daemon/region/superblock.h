// The immutable head of a ctl file: Superblock and ImageExtent table (proto/local/region.h), built and checked.
//
// A head is checked in a private copy: CRC first, then every number against the limits and against each other, with
// checked arithmetic, so that code behind ParseCtlHead may compute with them. Pure functions, any thread.
#ifndef CKPTD_DAEMON_REGION_SUPERBLOCK_H_
#define CKPTD_DAEMON_REGION_SUPERBLOCK_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/ids.h"
#include "proto/local/region.h"

namespace ckptd::region {

// What a rank's layout is made of; offsets of the images follow from their order.
struct LayoutSpec {
  std::string job;
  uint32_t uid = 0;  // owner of the job
  Rank rank = 0;
  uint32_t world = 0;
  uint32_t slot_count = 2;
  uint32_t header_crc = 0;   // CRC32C over all image headers, one after the other
  uint64_t chunk_bytes = 0;  // power of two; ChunkBytesFor() chooses
  std::vector<ImageExtent> images;
  uint32_t tail_bytes = 0;  // room behind each record (parity_record.h); at most kMaxTailBytes
};

inline constexpr uint32_t kMaxTailBytes = 64u << 10;

// A checked head, in private memory.
struct CtlHead {
  Superblock block{};
  std::vector<ImageExtent> images;

  [[nodiscard]] absl::string_view job() const;
  [[nodiscard]] uint64_t slot_file_bytes() const;  // slot_bytes, rounded up to 2 MiB
  [[nodiscard]] uint64_t tail_offset() const;      // in a record area: where what follows the record begins
};

// The largest ctl file that ParseCtlHead can accept: kMaxSlots records of kMaxChunks, and the tables.
inline constexpr uint64_t kMaxCtlBytes = 40u << 20;

// 1 MiB, doubled until a slot has at most 8192 chunks; at most kMaxChunkBytes.
[[nodiscard]] uint64_t ChunkBytesFor(uint64_t slot_bytes);

// CRCs and offsets filled in. INVALID_ARGUMENT when the spec breaks a limit of region.h.
[[nodiscard]] absl::StatusOr<CtlHead> MakeCtlHead(const LayoutSpec& spec, uint64_t region_id, uint32_t layout,
                                                  uint64_t created_unix_ns);

// `file`: a whole ctl file, copied out. CORRUPT when anything is wrong; NEWER_VERSION when it is a ctl file of a major
// that this build does not know (its other fields were then not looked at).
[[nodiscard]] absl::StatusOr<CtlHead> ParseCtlHead(std::span<const std::byte> file);

// Superblock and table as they stand at the beginning of the file: records_offset bytes, states zero.
[[nodiscard]] std::vector<std::byte> EncodeCtlHead(const CtlHead& head);

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_SUPERBLOCK_H_
