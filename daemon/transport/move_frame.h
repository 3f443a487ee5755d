// The frames of Move (copies.proto: MoveRequest and MoveResponse have the same numbers), read and written by hand, so
// that data is not copied by protobuf: a key, a length, and the body, which is all of the message. Pure; any thread.
#ifndef CKPTD_DAEMON_TRANSPORT_MOVE_FRAME_H_
#define CKPTD_DAEMON_TRANSPORT_MOVE_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/transport/transfer_messages.h"

namespace ckptd::transport {

enum class FrameKind : uint8_t { kHello = 1, kMessage = 2, kChunk = 3, kData = 4 };

inline constexpr size_t kMinFrameHead = 2;
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

// Where frames follow each other in a stream of bytes.
struct FrameOpening {
  FrameKind kind;
  size_t head = 0;
  size_t body = 0;  // 1 to MostOf(kind)
};
// `first`: what is there of it. Nothing: more bytes are needed. PROTOCOL for what begins no frame.
[[nodiscard]] absl::StatusOr<std::optional<FrameOpening>> ReadFrameHead(absl::string_view first);

[[nodiscard]] std::string EncodeChunk(const ChunkHeader& header);
[[nodiscard]] absl::StatusOr<ChunkHeader> DecodeChunk(absl::string_view body);

}  // namespace ckptd::transport

#endif  // CKPTD_DAEMON_TRANSPORT_MOVE_FRAME_H_
