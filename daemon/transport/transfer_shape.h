// What is transferred: an image of so many bytes, in chunks of one length cut from byte 0; the last may be shorter. An
// image of 0 bytes has no chunks. Values only; any thread.
#ifndef CKPTD_DAEMON_TRANSPORT_TRANSFER_SHAPE_H_
#define CKPTD_DAEMON_TRANSPORT_TRANSFER_SHAPE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/base/clock.h"
#include "daemon/base/ids.h"
#include "daemon/base/units.h"

namespace ckptd::transport {

inline constexpr Nanos kLongestTransfer = std::chrono::minutes(30);  // of one: what is not through by then fails

inline constexpr uint64_t kMinChunkBytes = 4 * kKiB;
inline constexpr uint64_t kMaxChunkBytes = 64 * kMiB;
inline constexpr uint32_t kMaxChunks = uint32_t{1} << 20;  // as many as a slot may have (proto/local/region.h)

class TransferShape {
 public:
  // chunk_bytes: kMinChunkBytes to kMaxChunkBytes; at most kMaxChunks of them. Else INVALID_ARGUMENT.
  [[nodiscard]] static absl::StatusOr<TransferShape> Make(uint64_t image_bytes, uint64_t chunk_bytes);

  [[nodiscard]] uint64_t image_bytes() const { return image_bytes_; }
  [[nodiscard]] uint64_t chunk_bytes() const { return chunk_bytes_; }
  [[nodiscard]] uint32_t chunks() const { return chunks_; }
  // Of a chunk < chunks(), in bytes.
  [[nodiscard]] uint64_t Offset(uint32_t chunk) const { return chunk * chunk_bytes_; }
  [[nodiscard]] uint64_t Length(uint32_t chunk) const;
  bool operator==(const TransferShape&) const = default;

 private:
  TransferShape(uint64_t image_bytes, uint64_t chunk_bytes, uint32_t chunks)
      : image_bytes_(image_bytes), chunk_bytes_(chunk_bytes), chunks_(chunks) {}

  uint64_t image_bytes_;
  uint64_t chunk_bytes_;
  uint32_t chunks_;
};

// Which image it is, and whose: what a token is bound to.
struct TransferName {
  std::string peer;  // the other node's name
  std::string job;
  Rank rank = 0;
  SnapshotId snapshot;
  uint32_t slot = 0;  // of the node that asks for the transfer
  bool operator==(const TransferName&) const = default;
};

inline constexpr size_t kMaxPeerName = 253;

// INVALID_ARGUMENT when a name is empty, too long or no job's, or the snapshot is none.
[[nodiscard]] absl::Status CheckTransferName(const TransferName& name);

// "peer n2, job gpt, rank 3, step 1000.a3, slot 1": what every error of a transfer begins with.
[[nodiscard]] std::string ToString(const TransferName& name);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TRANSFER_SHAPE_H_
