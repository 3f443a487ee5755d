#include "daemon/region/peer_fill.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::region {

uint32_t RootCrc(std::span<const uint32_t> chunk_crcs) { return Crc32c(0, chunk_crcs.data(), chunk_crcs.size_bytes()); }

PeerFill::PeerFill(FillPlace place, std::shared_ptr<const SlotFile> file, Mapping mapping, SlotHold hold)
    : place_(std::move(place)),
      chunk_count_((place_.slot_bytes + place_.chunk_bytes - 1) / place_.chunk_bytes),
      hold_(std::move(hold)),
      file_(std::move(file)),
      mapping_(std::move(mapping)),
      missing_(chunk_count_),
      verified_(chunk_count_),
      crcs_(chunk_count_) {}

absl::StatusOr<std::span<std::byte>> PeerFill::Chunk(size_t chunk) {
  if (chunk >= chunk_count_)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(place_.name, ": chunk ", chunk, " of ", chunk_count_));
  const uint64_t offset = chunk * place_.chunk_bytes;
  return bytes().subspan(offset, std::min(place_.chunk_bytes, place_.slot_bytes - offset));
}

absl::Status PeerFill::CheckChunk(size_t chunk, uint32_t crc) {
  CKPTD_ASSIGN_OR_RETURN(std::span<std::byte> bytes, Chunk(chunk));
  const uint32_t found = Crc32c(0, bytes.data(), bytes.size());
  if (found == crc) return ChunkVerified(chunk, crc);
  return Error(ErrorCode::CORRUPT, absl::StrCat(place_.name, ": chunk ", chunk, " arrived with checksum ",
                                                absl::Hex(found), ", its owner's is ", absl::Hex(crc)));
}

absl::Status PeerFill::CheckOpen() const {
  if (!fenced_) return absl::OkStatus();
  return Error(ErrorCode::FENCED, absl::StrCat(place_.name, ": this copy is no longer wanted"));
}

absl::Status PeerFill::ChunkVerified(size_t chunk, uint32_t crc) {
  if (chunk >= chunk_count_)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat(place_.name, ": chunk ", chunk, " of ", chunk_count_));
  MutexLock lock(mutex_);
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  if (verified_[chunk] && crcs_[chunk] != crc)
    return Error(ErrorCode::CORRUPT, absl::StrCat(place_.name, ": chunk ", chunk, " came twice, with other content"));
  if (!verified_[chunk]) --missing_;
  verified_[chunk] = true;
  crcs_[chunk] = crc;
  return absl::OkStatus();
}

size_t PeerFill::missing() {
  MutexLock lock(mutex_);
  return missing_;
}

bool PeerFill::fenced() {
  MutexLock lock(mutex_);
  return fenced_;
}

void PeerFill::Fence() {
  MutexLock lock(mutex_);
  fenced_ = true;
}

absl::StatusOr<std::vector<uint32_t>> PeerFill::Checksums() {
  MutexLock lock(mutex_);
  CKPTD_RETURN_IF_ERROR(CheckOpen());
  if (missing_ == 0) return crcs_;
  const auto first = std::find(verified_.begin(), verified_.end(), false) - verified_.begin();
  return Error(ErrorCode::REFUSED, absl::StrCat(place_.name, ": ", missing_, " of ", chunk_count_,
                                                " chunks are missing, the first is ", first));
}

}  // namespace ckptd::region
