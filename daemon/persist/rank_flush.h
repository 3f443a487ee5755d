// One rank's slot on its way to the storage: images, then the sidecar. The commit (manifest) is not made here.
//
//   chunks, as they are captured:  Write -> part writers under temporary names, direct I/O from the slot
//   once sealed:                   Finish = fsync, publish each image; then create the sidecar exclusively
//
// The sidecar is written after all images are durable: who finds a sidecar finds the images. Publishing a name that is
// taken is success when the bytes there are the same (an agent that was killed after publishing does this again), and
// CORRUPT when they are not. After any other failure the object is dead: make a new one and write everything again from
// the slot, never a second fsync of the same file. Where an earlier try failed, an image that has its name is only
// read: there may be no room for it twice.
//
// One thread at a time. Blocks as long as the storage does. CANCELLED soon after `cancel` turns true, until the last
// image has its name: the object goes then, and what it wrote under temporary names with it.
#ifndef CKPTD_DAEMON_PERSIST_RANK_FLUSH_H_
#define CKPTD_DAEMON_PERSIST_RANK_FLUSH_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/storage/checked_read.h"
#include "daemon/storage/store.h"
#include "proto/ckptd/v1/manifest.pb.h"
#include "proto/local/region.h"

namespace ckptd {

// Where the bytes are and what they are called. `slot` is only handed to the kernel as the source of writes: a trainer
// that truncates its file makes the write fail, not the agent.
struct FlushSource {
  std::string job;
  Rank rank = 0;
  uint32_t world = 0;
  SnapshotId id;
  std::vector<ImageExtent> images;
  uint64_t chunk_bytes = 0;
  uint32_t header_crc = 0;  // of the headers as the trainer registered them, 0 = unknown
  bool again = false;       // an earlier try did not end well: what it published is looked for
  std::span<const std::byte> slot;
  std::shared_ptr<const void> keep;  // keeps `slot` mapped
};

// What is known once the slot is sealed.
struct FlushSeal {
  SnapshotId parent;
  std::vector<uint32_t> chunk_crcs;
  uint64_t trace = 0;
  int64_t captured_unix_ns = 0;
};

class RankFlush {
 public:
  // All outlive it; `cancel` may be null.
  RankFlush(Store& store, const Clock& clock, const FlushSource& source, const std::atomic<bool>* cancel = nullptr);

  // Queues the bytes of one chunk, but for images that are there; every chunk once.
  [[nodiscard]] absl::Status WriteChunk(uint32_t chunk);
  // After all chunks were written.
  [[nodiscard]] absl::Status Finish(const FlushSeal& seal);

 private:
  struct Part {
    std::unique_ptr<PartWriter> writer;
    bool there = false;  // it had its name before this try
  };

  [[nodiscard]] absl::Status CheckWanted() const;
  [[nodiscard]] absl::Status Begin(size_t image);
  [[nodiscard]] absl::Status WriteRange(size_t image, uint64_t begin, uint64_t end);
  [[nodiscard]] absl::Status PublishImage(size_t image);
  [[nodiscard]] absl::StatusOr<bool> PublishImages();
  [[nodiscard]] v1::Sidecar BuildSidecar(const FlushSeal& seal) const;
  [[nodiscard]] absl::Status CheckSameBytes(const FlushSeal& seal);
  [[nodiscard]] absl::Status CreateSidecar(const FlushSeal& seal);
  [[nodiscard]] std::string ImageName(size_t image) const;

  Store& store_;
  const Clock& clock_;
  const FlushSource& source_;
  const std::atomic<bool>* const cancel_;
  std::vector<Part> parts_;  // by image
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_PERSIST_RANK_FLUSH_H_
