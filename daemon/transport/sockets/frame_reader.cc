#include "daemon/transport/sockets/frame_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "client/core/copy/copy_crc.h"
#include "daemon/base/status_macros.h"

namespace ckptd::transport {
namespace {

constexpr size_t kMostBuffered = 256 << 10;  // up to 1 MiB makes no clear difference (tools/bench/NOTES.md)

}  // namespace

absl::StatusOr<std::optional<FrameReader::Whole>> FrameReader::Take() {
  if (placing_ != 0) {
    if (!Fill()) return std::nullopt;
    return Whole{FrameKind::kData, "", 0, std::exchange(placing_, 0), crc_};
  }
  if (!Drop()) return std::nullopt;
  CKPTD_ASSIGN_OR_RETURN(const bool known, ReadHead());
  if (!known) return std::nullopt;
  const FrameKind kind = frame_->kind;
  if (kind == FrameKind::kData) {
    unplaced_ = frame_->body;
    frame_.reset();
    return Whole{kind, "", unplaced_, 0, 0};
  }
  if (!ReadBody()) return std::nullopt;
  frame_.reset();
  return Whole{kind, std::move(body_), 0, 0, 0};
}

std::optional<uint32_t> FrameReader::Place(std::span<std::byte> into) {
  place_ = into.first(std::min(into.size(), unplaced_));
  placing_ = place_.size();
  unplaced_ -= placing_;
  crc_ = 0;
  if (!Fill()) return std::nullopt;
  placing_ = 0;
  return crc_;
}

bool FrameReader::Fill() {
  const size_t most = std::min(kMostBuffered, place_.size());
  if (buffer_.size() < most) buffer_.resize(most);
  while (!place_.empty()) {
    const size_t got = source_(std::span(buffer_).first(std::min(buffer_.size(), place_.size())));
    if (got == 0) return false;
    crc_ = CopyCrc32c(crc_, place_.data(), buffer_.data(), got);
    place_ = place_.subspan(got);
  }
  return true;
}

// Data that nobody asked for.
bool FrameReader::Drop() {
  std::array<std::byte, 16384> nowhere;
  while (unplaced_ != 0) {
    const size_t got = source_(std::span(nowhere).first(std::min(nowhere.size(), unplaced_)));
    if (got == 0) return false;
    unplaced_ -= got;
  }
  return true;
}

// No byte more than the head has: what follows may go elsewhere.
absl::StatusOr<bool> FrameReader::ReadHead() {
  while (!frame_) {
    std::array<std::byte, kMinFrameHead> next;
    const size_t most = head_.size() < kMinFrameHead ? kMinFrameHead - head_.size() : 1;
    const size_t got = source_(std::span(next).first(most));
    if (got == 0) return false;
    head_.append(reinterpret_cast<const char*>(next.data()), got);
    CKPTD_ASSIGN_OR_RETURN(frame_, ReadFrameHead(head_));
  }
  if (head_.empty()) return true;
  head_.clear();
  body_.assign(frame_->kind == FrameKind::kData ? 0 : frame_->body, 0);
  filled_ = 0;
  return true;
}

bool FrameReader::ReadBody() {
  while (filled_ < body_.size()) {
    const auto bytes = std::as_writable_bytes(std::span(body_));
    const size_t got = source_(bytes.subspan(filled_));
    if (got == 0) return false;
    filled_ += got;
  }
  return true;
}

}  // namespace ckptd::transport
