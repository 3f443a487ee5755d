// The frames of Move (copies.proto: MoveRequest and MoveResponse have the same numbers), read and written by hand, so
// that data is not copied by protobuf: a key, a length, and the body, which is all of the message. Pure; any thread.
#ifndef CKPTD_DAEMON_TRANSPORT_MOVE_FRAME_H_
#define CKPTD_DAEMON_TRANSPORT_MOVE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/transport/transfer_messages.h"

namespace ckptd::transport {

enum class FrameKind : uint8_t { kHello = 1, kMessage = 2, kChunk = 3, kData = 4 };

inline constexpr size_t kMaxFrameHead = 6;
inline constexpr size_t kMaxHelloFrame = 4096;
inline constexpr size_t kMaxChunkFrame = 64;

// Bytes that the body of such a frame may have.
[[nodiscard]] size_t MostOf(FrameKind kind);
// What stands before a body of so many bytes.
[[nodiscard]] std::string FrameHead(FrameKind kind, size_t body);

struct FrameStart {
  FrameKind kind;
  size_t head = 0;  // bytes before the body
};
// `first`: at least kMaxFrameHead bytes, or all. PROTOCOL when it is no frame of `total` bytes, or too large a one.
[[nodiscard]] absl::StatusOr<FrameStart> ParseFrameHead(absl::string_view first, size_t total);

[[nodiscard]] std::string EncodeChunk(const ChunkHeader& header);
[[nodiscard]] absl::StatusOr<ChunkHeader> DecodeChunk(absl::string_view body);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_MOVE_FRAME_H_
