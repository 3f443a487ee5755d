// The receiving end of one transfer, as decisions: where a chunk goes, whether it is verified, what is answered.
// transfer_messages.h describes the protocol; connections are numbers as for the sender. No I/O, no clock.
//
// The image's memory is written by the transport and read by whoever verifies, both outside of this class. So it keeps
// which chunk is under whose hands, from Header() until Settled() or Broken(): one is never given to two writers, and a
// new connection waits until all of the old one's are let go (busy()). Only what was verified after its last byte was
// written counts, and a chunk that counts is never written again.
#ifndef CKPTD_DAEMON_TRANSPORT_TRANSFER_RECEIVER_H_
#define CKPTD_DAEMON_TRANSPORT_TRANSFER_RECEIVER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/transport/transfer_messages.h"
#include "daemon/transport/transfer_rules.h"
#include "daemon/transport/transfer_sender.h"
#include "daemon/transport/transfer_shape.h"

namespace ckptd::transport {

struct ReceiverLimits {
  Nanos deadline{Nanos::max()};            // of the whole transfer, monotonic
  Nanos alone = std::chrono::seconds(60);  // so long without a connection: the transfer fails
  uint64_t window = 4 * kMaxChunkBytes;    // bytes under way at once; at most kMaxWindow, at least a chunk
};

// What to do with the bytes that follow a header.
enum class Placement { kInto, kPassOver };

// One thread at a time.
class TransferReceiver {
 public:
  TransferReceiver(TransferName name, const TransferShape& shape, const ReceiverLimits& limits, Nanos now,
                   Rules rules = {});

  // BUSY while chunks of the connection before are not let go of: wait for busy() to end. REFUSED once it has failed.
  // Complete ones may still be asked: the sender may not have heard.
  [[nodiscard]] absl::Status Connected(ConnectionId connection, Nanos now);
  // Broken() was said for all that was being written, or still will be.
  void Lost(ConnectionId connection, Nanos now);

  // A chunk begins to arrive. kInto: to the chunk's place in the image; it is the transport's until Settled() or
  // Broken(). kPassOver: nobody wants these bytes. Not OK: the transfer has failed, with PROTOCOL.
  [[nodiscard]] absl::StatusOr<Placement> Header(ConnectionId connection, const ChunkHeader& header, Nanos now);
  // All bytes are in place, nobody writes there, and their CRC32C is this.
  void Settled(const ChunkHeader& header, uint32_t crc, Nanos now);
  // They did not all come. Nobody writes there any more.
  void Broken(const ChunkHeader& header);
  void Heard(ConnectionId connection, const TransferMessage& message);
  // The sender may have so many bytes under way from now on: at most kMaxWindow; less than a chunk: it pauses, for as
  // long as its patience with silence lasts.
  void Grant(uint64_t bytes);
  void Tick(Nanos now);
  void Abort(const absl::Status& why);

  // What is to be said on the present connection, in this order.
  [[nodiscard]] std::vector<TransferMessage> TakeMessages();
  [[nodiscard]] bool hang_up() const { return connection_ != 0 && state_ == TransferState::kFailed; }
  [[nodiscard]] Nanos NextDeadline() const;

  [[nodiscard]] bool busy() const { return under_way_ > 0; }  // chunks being written or verified
  [[nodiscard]] TransferState state() const { return state_; }
  [[nodiscard]] const absl::Status& status() const { return status_; }  // as the sender's
  [[nodiscard]] ConnectionId connection() const { return connection_; }
  [[nodiscard]] uint32_t verified() const { return verified_; }
  [[nodiscard]] uint32_t crc(uint32_t chunk) const { return chunks_[chunk].crc; }  // of a verified chunk
  [[nodiscard]] const TransferShape& shape() const { return shape_; }
  [[nodiscard]] const TransferName& name() const { return name_; }

 private:
  enum class ChunkState : uint8_t { kMissing, kUnderWay, kVerified };
  struct Chunk {
    ChunkState state = ChunkState::kMissing;
    uint8_t damaged = 0;  // attempts that did not match
    uint32_t crc = 0;
    ConnectionId connection = 0;  // that brings it
  };

  [[nodiscard]] absl::Status Check(const ChunkHeader& header) const;
  [[nodiscard]] bool IsWanted(const Chunk& chunk, const ChunkHeader& header) const;
  void PassOver(const Chunk& chunk, const ChunkHeader& header);
  void Verify(Chunk& chunk, const ChunkHeader& header);
  void Refuse(Chunk& chunk, const ChunkHeader& header);
  template <typename Message>
  void Say(ConnectionId connection, Message message);
  void Fail(const absl::Status& why, bool tell);
  [[nodiscard]] absl::Status FailProtocol(absl::string_view what);

  const TransferName name_;
  const TransferShape shape_;
  const ReceiverLimits limits_;
  const Rules rules_;
  std::vector<Chunk> chunks_;
  std::vector<TransferMessage> messages_;
  TransferState state_;
  absl::Status status_;
  uint32_t verified_ = 0;
  uint32_t under_way_ = 0;
  uint64_t under_way_bytes_ = 0;
  uint64_t window_;       // granted last
  uint64_t granted_ = 0;  // most that was granted on this connection
  uint32_t window_sequence_ = 0;
  ConnectionId connection_ = 0;
  Nanos alone_since_;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TRANSFER_RECEIVER_H_
