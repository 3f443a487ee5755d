// What the two ends of a transfer say to each other, beside the chunks themselves.
//
// The receiver leads. On each new connection it says Welcome with the chunks it has verified, so that a transfer goes
// on where it was cut off, and a Window. The sender sends chunks that are ready and not welcomed, in any order, as long
// as no more bytes than the window are neither acknowledged nor refused. The receiver checks the CRC32C of each chunk
// where it lies and answers Verified, or Damaged: then the chunk is sent again as its next attempt, kMaxAttempts times
// at most. When every chunk is verified, the transfer is complete. Either may say Stop with an error.
//
// Loss, doubling and reordering are harmless: a Window has a sequence number and older ones are ignored, Verified and
// Damaged name the attempt they are about, a chunk that is there is answered anew and its bytes are dropped. What was
// lost leaves silence; silence ends the connection (transfer_sender.h), and the next Welcome says what is there. What
// belongs to an earlier connection never counts for the next.
//
// On the wire, little-endian, first a byte that says which; nothing may follow the fields:
//   1 Welcome   u32 number of chunks, then a bit for each, from the lowest of the first byte; unused bits are 0
//   2 Window    u32 sequence, from 1; u64 bytes
//   3 Verified  u32 chunk, u32 attempt
//   4 Damaged   u32 chunk, u32 attempt
//   5 Stop      u32 number of proto/local/errors.def, u16 length, that many bytes of text
#ifndef CKPTD_DAEMON_TRANSPORT_TRANSFER_MESSAGES_H_
#define CKPTD_DAEMON_TRANSPORT_TRANSFER_MESSAGES_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/transport/transfer_shape.h"
#include "daemon/transport/transfer_token.h"

namespace ckptd::transport {

inline constexpr uint32_t kMaxAttempts = 4;  // of one chunk
inline constexpr size_t kMaxStopText = 512;
inline constexpr size_t kMaxMessage = 5 + kMaxChunks / 8;
inline constexpr uint64_t kMaxWindow = kGiB;

// The header of a chunk. `attempt` from 1; `crc` is the CRC32C of its bytes as their owner knows it.
struct ChunkHeader {
  uint32_t chunk = 0;
  uint32_t attempt = 0;
  uint32_t crc = 0;
  uint64_t bytes = 0;
  bool operator==(const ChunkHeader&) const = default;
};

struct Welcome {
  std::vector<bool> have;  // by chunk
};
struct Window {
  uint32_t sequence = 0;
  uint64_t bytes = 0;
};
struct Verified {
  uint32_t chunk = 0;
  uint32_t attempt = 0;
};
struct Damaged {
  uint32_t chunk = 0;
  uint32_t attempt = 0;
};
struct Stop {
  uint32_t code = 0;
  std::string text;
};

using TransferMessage = std::variant<Welcome, Window, Verified, Damaged, Stop>;

[[nodiscard]] std::string Encode(const TransferMessage& message);
// PROTOCOL for anything that Encode does not make. Numbers are then only known to have a form; the machines check what
// they mean.
[[nodiscard]] absl::StatusOr<TransferMessage> DecodeMessage(absl::string_view bytes);

// The error of `stop`, said by the peer of `name`. Unprintable bytes of its text become '?'.
[[nodiscard]] absl::Status ErrorOf(const Stop& stop, const TransferName& name);
[[nodiscard]] absl::Status ErrorOf(const Stop& stop);
[[nodiscard]] Stop StopOf(const absl::Status& status);

// The first words of a bulk connection: the token, and what the transfer is, which the listener compares with what the
// token was made for. Layout: 16 bytes token, u32 rank, u64 attempt, u64 step, u32 slot, u64 image bytes, u64 chunk
// bytes, u16 length of the peer's name and the name, u16 length of the job's and the name. `name.peer` is the dialer.
struct Hello {
  TransferToken token{};
  TransferName name;
  uint64_t image_bytes = 0;
  uint64_t chunk_bytes = 0;
};
inline constexpr size_t kMaxHello = 16 + 40 + 2 + kMaxPeerName + 2 + 128 + 32;

[[nodiscard]] std::string EncodeHello(const Hello& hello);
// PROTOCOL, also for names and shapes that no transfer has.
[[nodiscard]] absl::StatusOr<Hello> DecodeHello(absl::string_view bytes);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_TRANSFER_MESSAGES_H_
