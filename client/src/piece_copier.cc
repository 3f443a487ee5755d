#include "client/src/piece_copier.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "client/core/copy/copy_crc.h"
#include "client/core/copy/crc32c.h"
#include "client/core/wire/huge_pages.h"

namespace ckptd {
namespace {

bool IsHostCopy(const Piece& piece) { return piece.source != nullptr && piece.lane == DeviceTensors::kHost; }

}  // namespace

// What a tmpfs says of its files where it was mounted with huge=.
bool PieceCopier::WritesHugePages(int fd) {
  struct stat file = {};
  return fstat(fd, &file) == 0 && static_cast<uint64_t>(file.st_blksize) >= kHugePage;
}

int PieceCopier::Copy(uint64_t end, uint32_t* crc, uint64_t* failed_at) {
  while (at_ < end) {
    while (pieces_[next_].slot_offset + pieces_[next_].bytes <= at_) ++next_;
    const Piece& piece = pieces_[next_];
    const uint64_t piece_end = std::min(end, piece.slot_offset + piece.bytes);
    if (!IsHostCopy(piece)) {
      Pass(piece_end, crc);
    } else if (IsDirect(piece)) {
      CopyDirectly(piece, piece_end, crc);
    } else {
      ssize_t moved = Move(Gather(end));
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) {
        *failed_at = at_;
        return moved < 0 ? errno : EIO;
      }
      Pass(at_ + static_cast<uint64_t>(moved), crc);
    }
  }
  return 0;
}

// What lies there is taken as it is.
void PieceCopier::Pass(uint64_t end, uint32_t* crc) {
  if (crc != nullptr) *crc = Crc32c(*crc, slot_ + at_, end - at_);
  at_ = end;
}

void PieceCopier::CopyDirectly(const Piece& piece, uint64_t end, uint32_t* crc) {
  uint32_t unused = 0;
  uint32_t& sum = crc != nullptr ? *crc : unused;
  sum = CopyCrc32c(sum, slot_ + at_, piece.source + (at_ - piece.slot_offset), end - at_);
  at_ = end;
}

size_t PieceCopier::Gather(uint64_t end) {
  size_t count = 0;
  gathered_ = 0;
  for (size_t i = next_; i < pieces_.size() && at_ + gathered_ < end && count < kMaxParts; ++i) {
    const Piece& piece = pieces_[i];
    if (!IsHostCopy(piece) || IsDirect(piece)) break;
    const uint64_t skip = at_ + gathered_ - piece.slot_offset;
    const uint64_t bytes = std::min(piece.bytes - skip, end - at_ - gathered_);
    parts_[count++] = {const_cast<char*>(piece.source) + skip, bytes};
    gathered_ += bytes;
  }
  return count;
}

ssize_t PieceCopier::Move(size_t parts) {
  if (may_read_) {
    const iovec into = {slot_ + at_, gathered_};
    const ssize_t read = process_vm_readv(self_, &into, 1, parts_.data(), parts, 0);
    if (read > 0) return read;
    may_read_ = read < 0 && errno != EPERM && errno != ENOSYS;
  }
  return pwritev(fd_, parts_.data(), static_cast<int>(parts), static_cast<off_t>(at_));
}

}  // namespace ckptd
