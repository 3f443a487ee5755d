// A copy on its way into a slot of this node.
//
// Whoever receives it writes the bytes through bytes() and says of each chunk that it arrived whole. Only the agent's
// user can truncate the file, which no trainer has, so the mapping may be touched.
//
// A writer cannot be stopped in the middle of a store, and a network card even less. So the slot belongs to the fill as
// long as anybody holds it: PeerStore gives the slot to nobody else before the last reference is gone, also when the
// fill was aborted or a newer attempt fenced it. A writer that finds fenced() lets go, after its last store has ended.
//
// bytes(), CheckChunk and ChunkVerified may be called by any thread, for different chunks at the same time.
#ifndef CKPTD_DAEMON_REGION_PEER_FILL_H_
#define CKPTD_DAEMON_REGION_PEER_FILL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/ids.h"
#include "daemon/base/mutex.h"
#include "daemon/os/mapping.h"
#include "daemon/region/peer_key.h"
#include "daemon/region/slot_file.h"

namespace ckptd::region {

// How many read or write a slot. Any thread.
class SlotUse {
 public:
  // What the holders did with the slot happened before, once this is false.
  [[nodiscard]] bool held() const { return holders_.load(std::memory_order_acquire) != 0; }

 private:
  friend class SlotHold;
  std::atomic<uint32_t> holders_{0};
};

// One of them. May be destroyed on any thread.
class SlotHold {
 public:
  SlotHold() = default;
  explicit SlotHold(std::shared_ptr<SlotUse> use) : use_(std::move(use)) { use_->holders_.fetch_add(1); }
  SlotHold(SlotHold&& other) noexcept : use_(std::move(other.use_)) {}
  SlotHold& operator=(SlotHold&& other) noexcept {
    std::swap(use_, other.use_);
    return *this;
  }
  ~SlotHold() {
    if (use_ != nullptr) use_->holders_.fetch_sub(1, std::memory_order_acq_rel);
  }

 private:
  std::shared_ptr<SlotUse> use_;
};

// CRC32C of a list of chunk CRCs: one number for the content of a slot.
[[nodiscard]] uint32_t RootCrc(std::span<const uint32_t> chunk_crcs);

// What a fill is of, and where it goes.
struct FillPlace {
  std::string name;  // "job gpt rank 7 step 1000.a3", for messages
  std::string job;
  PeerKey key;
  SnapshotId id;
  AttemptId attempt = 0;  // of the order, at least the snapshot's own
  Epoch epoch = 0;
  uint32_t layout = 0;
  uint32_t slot = 0;
  uint64_t slot_bytes = 0;
  uint64_t chunk_bytes = 0;
};

class PeerFill {
 public:
  PeerFill(FillPlace place, std::shared_ptr<const SlotFile> file, Mapping mapping, SlotHold hold);

  [[nodiscard]] const FillPlace& place() const { return place_; }
  // The slot, without what rounds its file up. Valid as long as this lives.
  [[nodiscard]] std::span<std::byte> bytes() { return mapping_.bytes().first(place_.slot_bytes); }
  [[nodiscard]] size_t chunk_count() const { return chunk_count_; }
  // INVALID_ARGUMENT when there is no such chunk.
  [[nodiscard]] absl::StatusOr<std::span<std::byte>> Chunk(size_t chunk);

  // Reads the chunk where it lies now and notes it. CORRUPT when it has another checksum than `crc`, its owner's.
  [[nodiscard]] absl::Status CheckChunk(size_t chunk, uint32_t crc) CKPTD_EXCLUDES(mutex_);
  // Notes a chunk that the caller has checked: `crc` was made of the bytes that went into the slot, and is its owner's.
  // FENCED when the fill is no longer wanted; CORRUPT when the chunk had another checksum before.
  [[nodiscard]] absl::Status ChunkVerified(size_t chunk, uint32_t crc) CKPTD_EXCLUDES(mutex_);

  [[nodiscard]] size_t missing() CKPTD_EXCLUDES(mutex_);
  // Aborted, complete, or shut out by a newer one: nobody wants it any more.
  [[nodiscard]] bool fenced() CKPTD_EXCLUDES(mutex_);

 private:
  friend class PeerRank;
  void Fence() CKPTD_EXCLUDES(mutex_);
  // All checksums. REFUSED naming the first chunk that is missing, FENCED.
  absl::StatusOr<std::vector<uint32_t>> Checksums() CKPTD_EXCLUDES(mutex_);
  absl::Status CheckOpen() const CKPTD_REQUIRES(mutex_);

  const FillPlace place_;
  const size_t chunk_count_;
  SlotHold hold_;                         // before the mapping: let go after it
  std::shared_ptr<const SlotFile> file_;  // its memory is counted as long as it is mapped
  Mapping mapping_;
  Mutex mutex_;
  bool fenced_ CKPTD_GUARDED_BY(mutex_) = false;
  size_t missing_ CKPTD_GUARDED_BY(mutex_);
  std::vector<bool> verified_ CKPTD_GUARDED_BY(mutex_);
  std::vector<uint32_t> crcs_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_PEER_FILL_H_
