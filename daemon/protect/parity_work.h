// One parity of one stripe while it is made: pieces are folded, chunk by chunk, into a slot of the peer store, and not
// kept. The slot holds
//
//   0                 parity, in whole chunks: as many as the longest block has; zeros behind its end
//   contents_begin    u32 length, little-endian, and a v1::ParityContents of so many bytes; zeros behind it
//   slot_bytes
//
// so that one list of checksums covers both, and who rebuilds an image learns here what its chunks must be.
//
// Any thread, but for Make and Finish: one at a time.
#ifndef CKPTD_DAEMON_PROTECT_PARITY_WORK_H_
#define CKPTD_DAEMON_PROTECT_PARITY_WORK_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/mutex.h"
#include "daemon/erasure/encoder.h"
#include "daemon/protect/parity_piece.h"
#include "daemon/region/peer_fill.h"
#include "daemon/region/slot_file.h"
#include "proto/ckptd/v1/copy.pb.h"

namespace ckptd::protect {

struct ParitySizes {
  std::vector<uint64_t> blocks;  // bytes of each data member's block, as the code counts them
  uint64_t chunk_bytes = 0;
  uint64_t parity_bytes = 0;  // whole chunks; 0 when all blocks are empty
  uint64_t slot_bytes = 0;
  [[nodiscard]] uint64_t contents_begin() const { return parity_bytes; }
};

// `layouts`: of all data members, as the code counts them. INVALID_ARGUMENT when their chunks differ, or the parity
// would be larger than a slot may be.
[[nodiscard]] absl::StatusOr<ParitySizes> SizesOf(const ParityPlace& place, const std::vector<v1::CopyLayout>& layouts);

// How long the parity is, in whole chunks, where the data members' images have so many bytes.
[[nodiscard]] uint64_t ParityBytes(const ParityPlace& place, const std::vector<uint64_t>& image_bytes,
                                   uint64_t chunk_bytes);

// What stands behind a complete parity. Nothing is believed: CORRUPT.
[[nodiscard]] absl::StatusOr<v1::ParityContents> ReadContents(const region::SlotFile& file, uint64_t slot_bytes,
                                                              uint64_t parity_bytes);

class ParityWork {
 public:
  // The fill is of a slot of sizes.slot_bytes.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<ParityWork>> Make(const ParityPlace& place, ParitySizes sizes,
                                                                        std::shared_ptr<region::PeerFill> fill);

  // Chunk number `chunk` of the block of data member `data`, whose checksum was made of `bytes`. A second time it must
  // be the same, and nothing happens. FENCED when the parity is not wanted any more; CORRUPT; INVALID_ARGUMENT.
  [[nodiscard]] absl::Status Fold(uint32_t data, uint32_t chunk, uint32_t crc, std::span<const std::byte> bytes)
      CKPTD_EXCLUDES(mutex_);
  // Every chunk of the block is in, and has these checksums. REFUSED, CORRUPT.
  [[nodiscard]] absl::Status CheckBlock(uint32_t data, std::span<const uint32_t> crcs) CKPTD_EXCLUDES(mutex_);
  // What is in is not what came, or was sealed, later: it cannot be taken out, and nothing will come of this parity.
  [[nodiscard]] bool contradicted() CKPTD_EXCLUDES(mutex_);
  // So many chunks are in: grows with progress.
  [[nodiscard]] size_t folded() CKPTD_EXCLUDES(mutex_);

  // All blocks are in. Writes the contents; returns the root checksum of the slot.
  [[nodiscard]] absl::StatusOr<uint32_t> Finish(v1::ParityContents contents) CKPTD_EXCLUDES(mutex_);

  [[nodiscard]] const ParitySizes& sizes() const { return sizes_; }
  [[nodiscard]] region::PeerFill& fill() { return *fill_; }

 private:
  ParityWork(erasure::Code code, ParitySizes sizes, std::shared_ptr<region::PeerFill> fill);
  [[nodiscard]] absl::Status Sum(uint64_t chunk) CKPTD_REQUIRES(mutex_);

  const erasure::Code code_;
  const ParitySizes sizes_;
  const std::shared_ptr<region::PeerFill> fill_;
  Mutex mutex_;
  std::optional<erasure::Encoder> encoder_ CKPTD_GUARDED_BY(mutex_);                 // none where all blocks are empty
  std::vector<std::vector<std::optional<uint32_t>>> crcs_ CKPTD_GUARDED_BY(mutex_);  // of what is in, by data member
  std::vector<uint32_t> sums_ CKPTD_GUARDED_BY(mutex_);                              // of the slot's chunks
  size_t folded_ CKPTD_GUARDED_BY(mutex_) = 0;
  bool contradicted_ CKPTD_GUARDED_BY(mutex_) = false;
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_PARITY_WORK_H_
