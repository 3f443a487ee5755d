// Reading one rank's images back as the one range they were in the slot, each chunk checked against its CRC32C.
//
// Chunks are cut over the slot, so a chunk may span two parts: one running checksum goes over the pieces, which come in
// order through a small buffer of the store. `sink` gets bytes before the last piece of their chunk was checked: what
// it wrote counts only when the whole call returned OK. `chunk_sink` gets whole chunks that are right, for one copy
// more; not together with `on_bad`.
#ifndef CKPTD_DAEMON_STORAGE_CHECKED_READ_H_
#define CKPTD_DAEMON_STORAGE_CHECKED_READ_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/storage/store.h"

namespace ckptd {

struct StoredPart {
  std::string name;    // relative to the root
  uint64_t bytes = 0;  // a multiple of 4096
};

// All images of one rank at one step.
struct StoredRank {
  std::vector<StoredPart> parts;  // in slot order
  uint64_t chunk_bytes = 0;       // power of two
  std::vector<uint32_t> chunk_crcs;

  [[nodiscard]] uint64_t bytes() const;
};

struct BadChunk {
  std::string part;     // where the chunk begins
  uint64_t offset = 0;  // in the part
  uint64_t bytes = 0;
  std::string reason;
};

struct CheckedReadOptions {
  // Every byte once, in order; null when only the check is wanted.
  std::function<absl::Status(uint64_t slot_offset, std::span<const std::byte> bytes)> sink;
  std::function<absl::Status(size_t chunk, std::span<const std::byte> bytes)> chunk_sink;
  // Which chunks; 0: all behind the first.
  size_t first_chunk = 0;
  size_t chunks = 0;
  // Null: the first bad chunk ends the read with CORRUPT. Else it is told each one, and the read goes on.
  std::function<void(const BadChunk&)> on_bad;
  std::function<void(uint64_t bytes_done)> progress;
  const std::atomic<bool>* cancel = nullptr;  // CANCELLED soon after it turns true
};

// Blocks; from an executor thread. CORRUPT names part and offset.
[[nodiscard]] absl::Status ReadChecked(Store& store, const StoredRank& rank, const CheckedReadOptions& options);

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_CHECKED_READ_H_
