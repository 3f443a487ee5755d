// The sending end of one transfer, as decisions: which chunk goes out next, what an answer means, when silence has
// lasted too long. transfer_messages.h describes the protocol. No I/O, no clock: whoever drives it tells it what
// happened and when, then asks Next(), TakeStop() and hang_up() until there is nothing left to do.
//
// A connection is a number that the driver chooses, another for each. What is said to belong to a connection that is
// not the present one is ignored: it was on its way when the connection ended.
#ifndef CKPTD_DAEMON_TRANSPORT_TRANSFER_SENDER_H_
#define CKPTD_DAEMON_TRANSPORT_TRANSFER_SENDER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "daemon/base/clock.h"
#include "daemon/transport/token_bucket.h"
#include "daemon/transport/transfer_messages.h"
#include "daemon/transport/transfer_rules.h"
#include "daemon/transport/transfer_shape.h"

namespace ckptd::transport {

enum class TransferState { kRunning, kComplete, kFailed };

using ConnectionId = uint64_t;  // 0 = none

struct SenderLimits {
  Nanos deadline{Nanos::max()};              // of the whole transfer, monotonic
  Nanos silence = std::chrono::seconds(10);  // an answer is owed that long: the connection is given up
  uint32_t vain_connections = 5;             // in a row without a chunk verified between: the transfer fails
  // So long without a chunk to send, and all that was sent is answered: the connection is given back. Longer than a
  // capture that goes on takes for a chunk of 64 MiB, and short beside what others wait for.
  Nanos idle = std::chrono::seconds(2);
  uint64_t bytes_per_second = 0;  // 0 = no limit
  uint64_t burst = kMaxChunkBytes;
  bool forgetful = false;  // the receiver may begin anew: what it has lost is sent again, not its mistake
};

// One thread at a time.
class TransferSender {
 public:
  TransferSender(TransferName name, const TransferShape& shape, const SenderLimits& limits, Rules rules = {});

  // The chunk's bytes are in place and stay as they are until the transfer ends; `crc` is their CRC32C. Any order;
  // again with the same checksum is no error. INVALID_ARGUMENT for no such chunk, or one that has another checksum
  // already.
  [[nodiscard]] absl::Status ChunkReady(uint32_t chunk, uint32_t crc);

  // There is a connection, and nothing was said on it. The one before has ended.
  void Connected(ConnectionId connection, Nanos now);
  void Lost(ConnectionId connection, Nanos now);
  // What came from the receiver. What makes no sense fails the transfer with PROTOCOL.
  void Heard(ConnectionId connection, const TransferMessage& message, Nanos now);
  void Tick(Nanos now);
  // From this side: CANCELLED, FENCED. Without effect once it has ended.
  void Abort(const absl::Status& why);

  // The next chunk to send; it counts as sent.
  [[nodiscard]] std::optional<ChunkHeader> Next(Nanos now);
  // To be said before the connection is closed: why this end gave up. Once.
  [[nodiscard]] std::optional<Stop> TakeStop();
  // The connection is of no use any more: close it.
  [[nodiscard]] bool hang_up() const { return connection_ != 0 && (hang_up_ || state_ != TransferState::kRunning); }
  // When Tick() or Next() is to be called at the latest; Nanos::max(): no need.
  [[nodiscard]] Nanos NextDeadline(Nanos now);

  // It could send, all it sent is answered, and its owner has no further chunk ready.
  [[nodiscard]] bool Starves() { return MaySend() && in_flight_ == 0 && !Head().has_value(); }
  // Not connected: there is nothing that a connection would be of use for, until a chunk is ready.
  [[nodiscard]] bool Rests() {
    return state_ == TransferState::kRunning && verified_ < shape_.chunks() && !Head().has_value();
  }
  // The present connection, or the last one, was given back, and is no sign of trouble.
  [[nodiscard]] bool gave_back() const { return gave_back_; }

  [[nodiscard]] TransferState state() const { return state_; }
  // OK but for kFailed: PROTOCOL, CORRUPT (a chunk was damaged kMaxAttempts times), TIMEOUT (deadline, or no connection
  // was of use), what Abort() said, or what the receiver stopped with.
  [[nodiscard]] const absl::Status& status() const { return status_; }
  [[nodiscard]] ConnectionId connection() const { return connection_; }
  [[nodiscard]] uint32_t verified() const { return verified_; }
  [[nodiscard]] const TransferShape& shape() const { return shape_; }
  [[nodiscard]] const TransferName& name() const { return name_; }

 private:
  enum class ChunkState : uint8_t { kAbsent, kReady, kSent, kVerified };
  struct Chunk {
    ChunkState state = ChunkState::kAbsent;
    uint8_t attempt = 1;  // of the next sending, or of that in flight
    uint32_t crc = 0;
  };

  void Fail(const absl::Status& why, bool tell);
  void FailProtocol(absl::string_view what);
  void EndConnection(Nanos now);
  void Take(const Welcome& welcome, Nanos now);
  void Take(const Window& window, Nanos now);
  void Take(const Verified& verified, Nanos now);
  void Take(const Damaged& damaged, Nanos now);
  void Take(const Stop& stop, Nanos now);
  [[nodiscard]] Chunk* Answered(uint32_t chunk, uint32_t attempt);
  void MarkVerified(Chunk& chunk, Nanos now);
  void QueueAnew();
  void CompleteIfAll();
  void GiveBackIfIdle(Nanos now);
  [[nodiscard]] bool AnswerIsOwed() const;
  [[nodiscard]] bool MaySend() const {
    return state_ == TransferState::kRunning && connection_ != 0 && welcomed_ && !hang_up_;
  }
  [[nodiscard]] std::optional<uint32_t> Head();

  const TransferName name_;
  const TransferShape shape_;
  const SenderLimits limits_;
  const Rules rules_;
  TokenBucket bucket_;
  std::vector<Chunk> chunks_;
  std::deque<uint32_t> queue_;  // kReady ones, in the order to send; some may have changed since
  TransferState state_ = TransferState::kRunning;
  absl::Status status_;
  std::optional<Stop> stop_;
  uint32_t verified_ = 0;

  ConnectionId connection_ = 0;
  bool welcomed_ = false;
  bool hang_up_ = false;
  bool gave_back_ = false;
  bool news_ = true;                      // a chunk became ready since a connection was given back
  std::optional<Nanos> starves_since_{};  // on this connection
  uint32_t window_sequence_ = 0;
  uint64_t window_ = 0;
  uint64_t in_flight_ = 0;  // bytes sent on this connection and not answered
  Nanos heard_{0};          // last sign of life, or of a duty that began
  uint32_t vain_connections_ = 0;
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TRANSFER_SENDER_H_
