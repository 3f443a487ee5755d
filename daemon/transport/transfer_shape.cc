#include "daemon/transport/transfer_shape.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::transport {

absl::StatusOr<TransferShape> TransferShape::Make(uint64_t image_bytes, uint64_t chunk_bytes) {
  if (chunk_bytes < kMinChunkBytes || chunk_bytes > kMaxChunkBytes)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("chunks of ", chunk_bytes, " bytes: ", kMinChunkBytes,
                                                           " to ", kMaxChunkBytes, " can be transferred"));
  const uint64_t chunks = image_bytes / chunk_bytes + (image_bytes % chunk_bytes != 0 ? 1 : 0);
  if (chunks > kMaxChunks)
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("an image of ", image_bytes, " bytes has ", chunks,
                                                           " chunks of ", chunk_bytes, "; at most ", kMaxChunks));
  return TransferShape(image_bytes, chunk_bytes, static_cast<uint32_t>(chunks));
}

uint64_t TransferShape::Length(uint32_t chunk) const { return std::min(chunk_bytes_, image_bytes_ - Offset(chunk)); }

absl::Status CheckTransferName(const TransferName& name) {
  const bool printable = std::all_of(name.peer.begin(), name.peer.end(),
                                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (name.peer.empty() || name.peer.size() > kMaxPeerName || !printable)
    return Error(ErrorCode::INVALID_ARGUMENT,
                 absl::StrCat("a peer's name of ", name.peer.size(), " bytes: 1 to ", kMaxPeerName, " printable ones"));
  if (name.snapshot.none())
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("peer ", name.peer, ": a transfer of no snapshot"));
  return CheckJobName(name.job);
}

std::string ToString(const TransferName& name) {
  return absl::StrCat("peer ", name.peer, ", job ", name.job, ", rank ", name.rank, ", step ",
                      ckptd::ToString(name.snapshot), ", slot ", name.slot);
}

}  // namespace ckptd::transport
