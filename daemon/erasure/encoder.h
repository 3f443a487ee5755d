// Parity of a group made as its images come: each chunk of each image is folded in once, in any order, and need not be
// kept. Parity is the only memory, and it is the caller's.
//
// Addition is its own inverse over GF(2^8): a chunk folded in twice is not there, and nobody would notice before a node
// is lost. So the encoder keeps which chunks of which images are in and refuses a second time. The first chunk to come
// to a place overwrites it, zeros behind its end included: parity need not be cleared before, and an encoder over the
// memory of the step before starts at once.
//
// One that came in half (its reading was broken off by a SIGBUS guard) or with another CRC than its owner says has
// spoiled its place in all parity: Restart() that chunk, and fold all images in again there.
//
// Threads: one at a time; encoders over different memory are independent and may share a Code.
#ifndef CKPTD_DAEMON_ERASURE_ENCODER_H_
#define CKPTD_DAEMON_ERASURE_ENCODER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/erasure/code.h"

namespace ckptd::erasure {

// As many as a slot may have (proto/local/region.h).
inline constexpr uint64_t kMaxEncoderChunks = uint64_t{1} << 20;

class Encoder {
 public:
  struct Layout {
    std::vector<uint64_t> image_bytes;  // of each data member; 0 = has none
    uint64_t chunk_bytes = 0;           // of all images, each cut from byte 0
  };

  // `parity`: one for each parity member, each as long as the longest image; overwritten. Both outlive the encoder.
  // INVALID_ARGUMENT when sizes and counts do not fit, or chunks are more than kMaxEncoderChunks.
  [[nodiscard]] static absl::StatusOr<Encoder> Make(const Code& code, Layout layout, std::vector<Bytes> parity);

  // `bytes`: chunk number `chunk` of the image of data member `member`, whole (the last one of an image is shorter).
  // Fetched once, as gf_product.h says. INVALID_ARGUMENT when there is no such chunk or it has another length;
  // REFUSED when it is in already. Parity is then as before.
  [[nodiscard]] absl::Status Fold(uint32_t member, uint64_t chunk, ConstBytes bytes);

  // Forgets what was folded in there. `chunk` < chunks().
  void Restart(uint64_t chunk);

  [[nodiscard]] uint64_t chunks() const { return missing_.size(); }  // of the longest image
  // Images whose chunk is not in yet; 0: parity is good there, and can be summed, sent and rebuilt from.
  [[nodiscard]] uint32_t Missing(uint64_t chunk) const { return missing_[chunk]; }
  [[nodiscard]] bool complete() const { return incomplete_ == 0; }

 private:
  Encoder(const Code& code, Layout layout, std::vector<Bytes> parity, uint64_t chunks);

  [[nodiscard]] uint64_t ChunkBytes(uint32_t member, uint64_t chunk) const;
  [[nodiscard]] uint32_t Expected(uint64_t chunk) const;
  [[nodiscard]] std::vector<bool>::reference Folded(uint32_t member, uint64_t chunk);
  [[nodiscard]] absl::Status CheckFold(uint32_t member, uint64_t chunk, uint64_t bytes);

  const Code* code_;
  Layout layout_;
  std::vector<Bytes> parity_;
  std::vector<bool> folded_;       // chunk by chunk, a bit for each data member
  std::vector<uint32_t> missing_;  // of each chunk
  uint64_t incomplete_;            // chunks with missing images
};

}  // namespace ckptd::erasure

#endif  // CKPTD_DAEMON_ERASURE_ENCODER_H_
