#include "daemon/transport/move_frame.h"

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"
#include "daemon/transport/bulk_stream.h"
#include "proto/ckptd/v1/copy.pb.h"

namespace ckptd::transport {
namespace {

constexpr uint8_t kLengthDelimited = 2;  // protobuf's wire type

absl::Status NoFrame(size_t total) {
  return Error(ErrorCode::PROTOCOL, absl::StrCat("Move: ", total, " bytes that are no message of it"));
}

}  // namespace

size_t MostOf(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
      return kMaxHelloFrame;
    case FrameKind::kMessage:
      return kMaxMessage;
    case FrameKind::kChunk:
      return kMaxChunkFrame;
    case FrameKind::kData:
      return kMaxPiece;
  }
  return 0;
}

std::string FrameHead(FrameKind kind, size_t body) {
  std::string head(1, static_cast<char>(static_cast<uint8_t>(kind) << 3 | kLengthDelimited));
  for (; body >= 0x80; body >>= 7) head.push_back(static_cast<char>(0x80 | (body & 0x7f)));
  head.push_back(static_cast<char>(body));
  return head;
}

absl::StatusOr<std::optional<FrameOpening>> ReadFrameHead(absl::string_view first) {
  if (first.empty()) return std::nullopt;
  const auto key = static_cast<uint8_t>(first[0]);
  const uint8_t number = key >> 3;
  if ((key & 7) != kLengthDelimited || number < 1 || number > 4) return NoFrame(first.size());
  uint64_t body = 0;
  size_t at = 1;
  for (int shift = 0;; shift += 7) {
    if (at >= kMaxFrameHead) return NoFrame(first.size());
    if (at >= first.size()) return std::nullopt;
    const auto byte = static_cast<uint8_t>(first[at++]);
    body |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) break;
  }
  const auto kind = static_cast<FrameKind>(number);
  if (body == 0 || body > MostOf(kind)) return NoFrame(first.size());
  return FrameOpening{kind, at, body};
}

absl::StatusOr<FrameStart> ParseFrameHead(absl::string_view first, size_t total) {
  const absl::StatusOr<std::optional<FrameOpening>> opening = ReadFrameHead(first);
  if (!opening.ok() || !opening->has_value() || (*opening)->body != total - (*opening)->head) return NoFrame(total);
  return FrameStart{(*opening)->kind, (*opening)->head};
}

std::string EncodeChunk(const ChunkHeader& header) {
  v1::ChunkHead head;
  head.set_chunk(header.chunk);
  head.set_attempt(header.attempt);
  head.set_crc(header.crc);
  head.set_bytes(header.bytes);
  return head.SerializeAsString();
}

absl::StatusOr<ChunkHeader> DecodeChunk(absl::string_view body) {
  v1::ChunkHead head;
  if (!head.ParseFromArray(body.data(), static_cast<int>(body.size()))) return NoFrame(body.size());
  return ChunkHeader{head.chunk(), head.attempt(), head.crc(), head.bytes()};
}

}  // namespace ckptd::transport
