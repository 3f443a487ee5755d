#include "daemon/region/salvage.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"

namespace ckptd::region {
namespace {

void Collect(const ScannedRank& rank, bool copy, const ScannedLayout& layout, std::vector<SalvageSnapshot>& found) {
  const Superblock& block = layout.head.block;
  for (const ScannedSlot& slot : layout.slots) {
    if (slot.now.state != SlotStateCode::kSealed || slot.now.record == nullptr || !slot.file_whole) continue;
    found.push_back({.job = std::string(layout.head.job()),
                     .uid = block.uid,
                     .rank = block.rank,
                     .copy = copy,
                     .world = block.world,
                     .images = layout.head.images,
                     .record = slot.now.record,
                     .flags = slot.now.flags,
                     .rank_dir = rank.dir,
                     .file_id = slot.now.file_id,
                     .slot_file_bytes = layout.head.slot_file_bytes()});
  }
}

bool Before(const SalvageSnapshot& a, const SalvageSnapshot& b) {
  const SnapshotId x = a.record->id();
  const SnapshotId y = b.record->id();
  return std::tie(a.job, a.rank, x, a.copy) < std::tie(b.job, b.rank, y, b.copy);
}

absl::StatusOr<std::unique_ptr<File>> OpenSlot(Files& files, const SalvageSnapshot& snapshot) {
  return files.Open(absl::StrCat(snapshot.rank_dir, "/", SlotFileName(snapshot.file_id)), {});
}

// Chunk `chunk`, whole and checked, in `buffer`.
absl::Status ReadChunk(File& file, const SlotRecord& record, size_t chunk, std::vector<std::byte>& buffer) {
  buffer.resize(record.ChunkLength(chunk));
  CKPTD_ASSIGN_OR_RETURN(size_t got, file.PRead(chunk * record.chunk_bytes, buffer));
  if (got == buffer.size() && Crc32c(0, buffer.data(), got) == record.chunk_crcs[chunk]) return absl::OkStatus();
  return Error(ErrorCode::CORRUPT,
               absl::StrCat(file.path(), ": chunk ", chunk, " of snapshot ", ToString(record.id()), " is damaged"));
}

}  // namespace

absl::StatusOr<std::vector<SalvageSnapshot>> ListSalvage(Files& files, const std::string& dir) {
  CKPTD_ASSIGN_OR_RETURN(RegionScan scan, ScanRegion(files, dir));
  std::vector<SalvageSnapshot> found;
  for (const ScannedJob& job : scan.jobs) {
    for (const ScannedRank& rank : job.ranks)
      for (const ScannedLayout& layout : rank.layouts) Collect(rank, false, layout, found);
    for (const ScannedPeer& peer : job.peers)
      if (peer.key.kind == PeerKind::kCopy)
        for (const ScannedLayout& layout : peer.held.layouts) Collect(peer.held, true, layout, found);
  }
  std::sort(found.begin(), found.end(), Before);
  return found;
}

absl::Status ReadSalvage(Files& files, const SalvageSnapshot& snapshot, size_t image,
                         const std::function<absl::Status(std::span<const std::byte>)>& sink) {
  if (image >= snapshot.images.size())
    return Error(ErrorCode::INVALID_ARGUMENT, absl::StrCat("image ", image, " of ", snapshot.images.size()));
  CKPTD_ASSIGN_OR_RETURN(auto file, OpenSlot(files, snapshot));
  const SlotRecord& record = *snapshot.record;
  const uint64_t begin = snapshot.images[image].offset;
  const uint64_t end = begin + snapshot.images[image].bytes;
  std::vector<std::byte> buffer;
  for (uint64_t chunk = begin / record.chunk_bytes; chunk * record.chunk_bytes < end; ++chunk) {
    CKPTD_RETURN_IF_ERROR(ReadChunk(*file, record, chunk, buffer));
    const uint64_t chunk_begin = chunk * record.chunk_bytes;
    const uint64_t from = std::max(begin, chunk_begin) - chunk_begin;
    const uint64_t to = std::min(end, chunk_begin + buffer.size()) - chunk_begin;
    CKPTD_RETURN_IF_ERROR(sink(std::span<const std::byte>(buffer).subspan(from, to - from)));
  }
  return absl::OkStatus();
}

}  // namespace ckptd::region
