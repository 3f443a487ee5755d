// One bulk connection that stands: frames (copies.proto, Move) go both ways and come in the order they were sent, until
// the connection ends. No call waits, so one thread drives both directions and looks at the clock meanwhile. gRPC is
// behind it (move_stream.h), a socket with or without TLS (sockets/socket_stream.h), UCX (ucx/ucx_stream.h), and
// testing/fake_bulk.h.
//
// One thread at a time, but for `changed`.
#ifndef CKPTD_DAEMON_TRANSPORT_BULK_STREAM_H_
#define CKPTD_DAEMON_TRANSPORT_BULK_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/transport/transfer_messages.h"

namespace ckptd::transport {

inline constexpr size_t kMaxPiece = size_t{1} << 20;  // of data in one frame

// What came: one of the four.
struct Incoming {
  std::optional<TransferMessage> message;
  std::optional<ChunkHeader> header;
  size_t data = 0;    // so many bytes wait for Place
  size_t placed = 0;  // so many bytes are in place, of the oldest Place that did not say so itself
  uint32_t crc = 0;   // CRC-32C of these
};

// Bytes of a file, of which some are sent.
struct FilePlace {
  int fd = -1;
  uint64_t offset = 0;
};

class BulkStream {
 public:
  virtual ~BulkStream() = default;

  // First, once. `changed` is called on any thread, whenever one of the questions below may have another answer.
  virtual void Watch(std::function<void()> changed) = 0;

  // The next frame; nothing: none is there yet, or none will come (ended). Data that was not taken is dropped. PROTOCOL
  // for what is no frame.
  [[nodiscard]] virtual absl::StatusOr<std::optional<Incoming>> Take() = 0;
  // Right after Take() said so, once: where all of the data goes. Its CRC-32C: it is there. Nothing: it goes there as
  // it comes, and a later Take() says when it is there, in the order of these calls. Other frames may be taken
  // meanwhile, and the memory is written to until quiet().
  [[nodiscard]] virtual std::optional<uint32_t> Place(std::span<std::byte> into) = 0;
  // Everything that came was taken, and nothing more will come.
  [[nodiscard]] virtual bool ended() = 0;

  // Whether one frame may be sent now; each makes it false for a while.
  [[nodiscard]] virtual bool writable() = 0;
  virtual void Say(const TransferMessage& message) = 0;
  virtual void SendHeader(const ChunkHeader& header) = 0;
  // `fill` puts the bytes where they are sent from; its error is returned, and nothing was sent.
  [[nodiscard]] virtual absl::Status SendData(size_t bytes,
                                              const std::function<absl::Status(std::span<std::byte> into)>& fill) = 0;
  // Whether it may be SendFile instead: the same out of a file, which stays open until Close(). The kernel may take the
  // bytes at any time until the other end has them: of a file that is written to meanwhile something else may arrive
  // than was there, which is for the receiver's checksum to notice. CORRUPT: it has none there, and nothing was sent;
  // when it is cut short later, Take() says so.
  [[nodiscard]] virtual bool sends_files() const { return false; }
  [[nodiscard]] virtual absl::Status SendFile(size_t bytes, const FilePlace& from);
  // When writable: nothing more will be sent. The other end sees ended() after all that was sent.
  virtual void EndWrites() = 0;

  // For good; what was not delivered is lost, unless the other end has ended, too. Whoever drives calls it last.
  virtual void Close(const absl::Status& why) = 0;
  // After Close(): nothing is put anywhere any more. It becomes so without the other end, in a moment.
  [[nodiscard]] virtual bool quiet() { return true; }
};

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_BULK_STREAM_H_
