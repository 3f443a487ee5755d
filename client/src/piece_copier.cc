#include "client/src/piece_copier.h"

#include <algorithm>
#include <cerrno>

namespace ckptd {
namespace {

bool IsHostCopy(const Piece& piece) { return piece.source != nullptr && piece.lane == DeviceTensors::kHost; }

}  // namespace

int PieceCopier::CopyUntil(uint64_t end, uint64_t* failed_at) {
  while (at_ < end) {
    while (pieces_[next_].slot_offset + pieces_[next_].bytes <= at_) ++next_;
    if (!IsHostCopy(pieces_[next_])) {
      at_ = std::min(end, pieces_[next_].slot_offset + pieces_[next_].bytes);
      continue;
    }
    int parts = Gather(end);
    ssize_t wrote = pwritev(fd_, parts_.data(), parts, static_cast<off_t>(at_));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      *failed_at = at_;
      return wrote < 0 ? errno : EIO;
    }
    at_ += static_cast<uint64_t>(wrote);
  }
  return 0;
}

int PieceCopier::Gather(uint64_t end) {
  size_t count = 0;
  uint64_t at = at_;
  for (size_t i = next_; i < pieces_.size() && at < end && count < kMaxParts; ++i) {
    const Piece& piece = pieces_[i];
    if (!IsHostCopy(piece)) break;
    uint64_t skip = at - piece.slot_offset;
    uint64_t bytes = std::min(piece.bytes - skip, end - at);
    parts_[count++] = {const_cast<char*>(piece.source) + skip, bytes};
    at += bytes;
  }
  return static_cast<int>(count);
}

}  // namespace ckptd
