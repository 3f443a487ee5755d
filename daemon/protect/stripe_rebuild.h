// One stripe of a lost image, made again from k other members of its code as their bytes come.
//
// Each source's bytes come into memory of their own (Scratch). A chunk of the image is made as soon as it is there from
// all of them, by whichever thread brought the last one, checked by its owner's CRC, written into the slot by
// descriptor, and given back in all of that memory. No more is in memory than what one source is ahead of another; at
// worst k times the stretch.
//
// The mutex guards who makes which chunk. Bytes are touched outside of it: those of a chunk belong to who brings them
// until Came(), and then to who brought the last one.
#ifndef CKPTD_DAEMON_PROTECT_STRIPE_REBUILD_H_
#define CKPTD_DAEMON_PROTECT_STRIPE_REBUILD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/mutex.h"
#include "daemon/erasure/decoder.h"
#include "daemon/os/scratch.h"
#include "daemon/region/slot_file.h"

namespace ckptd::protect {

class StripeRebuild {
 public:
  // What one source has of the stretch that is rebuilt: from its begin on, no more than all of it.
  struct Input {
    uint64_t bytes = 0;
    std::vector<uint32_t> crcs;  // one for each chunk
  };
  // The stretch: whole chunks, but for the image's last one.
  struct Stretch {
    std::string name;  // "job gpt rank 3 step 10"
    std::shared_ptr<region::SlotFile> file;
    uint64_t begin = 0;  // in the image
    uint64_t bytes = 0;
    uint64_t chunk_bytes = 0;
    std::vector<uint32_t> crcs;  // as the image's owner made them
    std::vector<bool> rebuilt;   // chunks that are in the slot already
  };

  // inputs[i]: of decoder.sources()[i]. REGION_FULL without address space.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<StripeRebuild>> Make(erasure::Decoder decoder, Stretch stretch,
                                                                           std::vector<Input> inputs);

  // Where the input's bytes go; empty when it has none.
  [[nodiscard]] std::span<std::byte> bytes(size_t input) const;
  // Any thread; once for each chunk. It is in place and has this CRC. An error ends the input: CORRUPT when the CRC is
  // another than its record's; else failed() or mismatch() says why, or Stop() was called.
  [[nodiscard]] absl::Status Came(size_t input, uint32_t chunk, uint32_t crc) CKPTD_EXCLUDES(mutex_);

  // Any thread. No further chunk is begun.
  void Stop() CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] bool stopped() const CKPTD_EXCLUDES(mutex_);

  // Of the stretch. Whole when nobody brings any more.
  [[nodiscard]] std::vector<bool> rebuilt() const CKPTD_EXCLUDES(mutex_);
  // The slot could not be written.
  [[nodiscard]] absl::Status failed() const CKPTD_EXCLUDES(mutex_);
  // All sources are what their records say, and what they give is not what the owner's record says: parity is of other
  // images.
  [[nodiscard]] absl::Status mismatch() const CKPTD_EXCLUDES(mutex_);

 private:
  StripeRebuild(erasure::Decoder decoder, Stretch stretch, std::vector<Input> inputs);

  [[nodiscard]] bool IsLast(size_t input, uint32_t chunk) CKPTD_EXCLUDES(mutex_);
  [[nodiscard]] absl::Status Decode(uint32_t chunk, std::span<std::byte> into) const;
  [[nodiscard]] absl::Status Rebuild(uint32_t chunk) CKPTD_EXCLUDES(mutex_);
  void Discard(uint32_t chunk);

  const erasure::Decoder decoder_;
  const Stretch stretch_;
  const std::vector<Input> inputs_;
  std::vector<std::optional<Scratch>> scratch_;
  mutable Mutex mutex_;
  std::vector<std::vector<bool>> came_ CKPTD_GUARDED_BY(mutex_);  // by input
  std::vector<uint32_t> missing_ CKPTD_GUARDED_BY(mutex_);        // inputs, by chunk
  std::vector<bool> rebuilt_ CKPTD_GUARDED_BY(mutex_);
  bool stopped_ CKPTD_GUARDED_BY(mutex_) = false;
  absl::Status failed_ CKPTD_GUARDED_BY(mutex_);
  absl::Status mismatch_ CKPTD_GUARDED_BY(mutex_);
};

}  // namespace ckptd::protect

#endif  // CKPTD_DAEMON_PROTECT_STRIPE_REBUILD_H_
