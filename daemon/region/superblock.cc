#include "daemon/region/superblock.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/core/copy/crc32c.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "daemon/base/units.h"

namespace ckptd::region {
namespace {

constexpr uint64_t kTableAlignment = 64;  // a cache line: state words of two slots never share one
constexpr uint64_t kPageBytes = 4096;
constexpr uint32_t kMaxHeadBytes = 4096;
constexpr uint64_t kFirstChunkBytes = 1u << 20;
constexpr uint64_t kWantedChunks = 8192;
constexpr uint64_t kTailAlignment = 8;

absl::Status Bad(absl::string_view what, uint64_t value) {
  return Error(ErrorCode::CORRUPT, absl::StrCat("ctl file: ", what, " ", value));
}

uint64_t ChunksOf(uint64_t slot_bytes, uint64_t chunk_bytes) { return (slot_bytes + chunk_bytes - 1) / chunk_bytes; }

uint64_t RecordBytes(uint64_t chunks) { return sizeof(RecordHead) + chunks * sizeof(uint32_t); }

uint64_t StatesBytes(uint64_t slots) { return sizeof(Grant) + slots * sizeof(SlotState); }

uint32_t HeadCrc(Superblock block, std::span<const std::byte> rest) {
  block.head_crc = 0;
  return Crc32c(Crc32c(0, &block, sizeof(block)), rest.data(), rest.size());
}

absl::Status CheckNumbers(const Superblock& block) {
  if (block.slot_count == 0 || block.slot_count > kMaxSlots) return Bad("slot_count", block.slot_count);
  if (block.image_count == 0 || block.image_count > kMaxImages) return Bad("image_count", block.image_count);
  if (block.chunk_count == 0 || block.chunk_count > kMaxChunks) return Bad("chunk_count", block.chunk_count);
  if (!std::has_single_bit(block.chunk_bytes) || block.chunk_bytes < kMinChunkBytes ||
      block.chunk_bytes > kMaxChunkBytes)
    return Bad("chunk_bytes", block.chunk_bytes);
  if (block.slot_bytes == 0 || block.slot_bytes > kMaxChunks * kMaxChunkBytes)
    return Bad("slot_bytes", block.slot_bytes);
  if (ChunksOf(block.slot_bytes, block.chunk_bytes) != block.chunk_count) return Bad("chunk_count", block.chunk_count);
  if (block.layout == 0) return Bad("layout", block.layout);
  if (block.world == 0 || block.rank >= block.world) return Bad("rank", block.rank);
  return absl::OkStatus();
}

// Images fill the slot without gap or overlap, in order.
absl::Status CheckImages(const CtlHead& head) {
  uint64_t end = 0;
  for (const ImageExtent& image : head.images) {
    if (image.offset != end) return Bad("image offset", image.offset);
    if (image.bytes == 0 || image.bytes % kImageAlignment != 0 || image.bytes > head.block.slot_bytes - end)
      return Bad("image bytes", image.bytes);
    if (image.header_bytes < 8 || image.header_bytes > image.bytes)
      return Bad("image header_bytes", image.header_bytes);
    end += image.bytes;
  }
  if (end != head.block.slot_bytes) return Bad("slot_bytes", head.block.slot_bytes);
  return absl::OkStatus();
}

// [offset, offset + bytes) lies at or behind `begin` and in the file, aligned. `begin` becomes its end.
absl::Status CheckTable(const Superblock& block, absl::string_view name, uint64_t offset, uint64_t bytes,
                        uint64_t& begin) {
  if (offset < begin || offset % 8 != 0 || offset > block.file_bytes || bytes > block.file_bytes - offset)
    return Bad(name, offset);
  begin = offset + bytes;
  return absl::OkStatus();
}

// All counts have passed CheckNumbers, so no product here overflows.
absl::Status CheckTables(const Superblock& block) {
  if (block.file_bytes > kMaxCtlBytes) return Bad("file_bytes", block.file_bytes);
  if (block.record_stride < RecordBytes(block.chunk_count) || block.record_stride % 8 != 0 ||
      block.record_stride > kMaxCtlBytes)
    return Bad("record_stride", block.record_stride);
  uint64_t end = block.head_bytes;
  CKPTD_RETURN_IF_ERROR(
      CheckTable(block, "images_offset", block.images_offset, block.image_count * sizeof(ImageExtent), end));
  CKPTD_RETURN_IF_ERROR(CheckTable(block, "states_offset", block.states_offset, StatesBytes(block.slot_count), end));
  return CheckTable(block, "records_offset", block.records_offset, block.slot_count * block.record_stride, end);
}

absl::Status CheckJob(const Superblock& block) {
  const void* end = std::memchr(block.job, 0, sizeof(block.job));
  if (end == nullptr) return Bad("job name without an end, rank", block.rank);
  return CheckJobName(block.job);
}

absl::StatusOr<Superblock> CopyBlock(std::span<const std::byte> file) {
  Superblock block;
  if (file.size() < sizeof(block)) return Bad("length", file.size());
  std::memcpy(&block, file.data(), sizeof(block));
  if (block.magic != kSuperblockMagic) return Bad("magic", block.magic);
  if (block.major > kRegionMajor)
    return Error(ErrorCode::NEWER_VERSION,
                 absl::StrCat("ctl file: region major ", block.major, ", this build knows ", kRegionMajor));
  if (block.major < kRegionMajorMin) return Bad("region major", block.major);
  if (block.head_bytes < sizeof(block) || block.head_bytes > kMaxHeadBytes || block.head_bytes > file.size())
    return Bad("head_bytes", block.head_bytes);
  if (HeadCrc(block, file.subspan(sizeof(block), block.head_bytes - sizeof(block))) != block.head_crc)
    return Bad("head_crc", block.head_crc);
  if (block.file_bytes != file.size()) return Bad("file_bytes", block.file_bytes);
  return block;
}

void PlaceTables(Superblock& block, uint32_t tail_bytes) {
  block.head_bytes = sizeof(Superblock);
  block.images_offset = RoundUp(block.head_bytes, kTableAlignment);
  block.states_offset = RoundUp(block.images_offset + block.image_count * sizeof(ImageExtent), kTableAlignment);
  block.records_offset = RoundUp(block.states_offset + StatesBytes(block.slot_count), kTableAlignment);
  block.record_stride = RoundUp(RoundUp(RecordBytes(block.chunk_count), kTailAlignment) + tail_bytes, kTableAlignment);
  block.file_bytes = RoundUp(block.records_offset + block.slot_count * block.record_stride, kPageBytes);
}

// Offsets and the sum of the images.
absl::Status PlaceImages(CtlHead& head) {
  if (head.images.empty() || head.images.size() > kMaxImages) return Bad("image_count", head.images.size());
  uint64_t end = 0;
  for (ImageExtent& image : head.images) {
    image.offset = end;
    if (__builtin_add_overflow(end, image.bytes, &end)) return Bad("image bytes", image.bytes);
  }
  head.block.slot_bytes = end;
  return absl::OkStatus();
}

absl::Status Check(const CtlHead& head) {
  CKPTD_RETURN_IF_ERROR(CheckNumbers(head.block));
  CKPTD_RETURN_IF_ERROR(CheckJob(head.block));
  CKPTD_RETURN_IF_ERROR(CheckTables(head.block));
  return CheckImages(head);
}

// Everything but offsets and checksums.
void FillBlock(const LayoutSpec& spec, uint64_t chunks, Superblock& block) {
  block.magic = kSuperblockMagic;
  block.major = kRegionMajor;
  block.minor = kRegionMinor;
  block.bell_id = RandomId();
  std::memcpy(block.job, spec.job.data(), spec.job.size());
  block.uid = spec.uid;
  block.rank = spec.rank;
  block.world = spec.world;
  block.slot_count = spec.slot_count;
  block.image_count = static_cast<uint32_t>(spec.images.size());
  block.chunk_count = static_cast<uint32_t>(chunks);
  block.header_crc = spec.header_crc;
  block.chunk_bytes = spec.chunk_bytes;
}

absl::StatusOr<CtlHead> Fill(const LayoutSpec& spec, uint64_t region_id, uint32_t layout, uint64_t created_unix_ns) {
  CKPTD_RETURN_IF_ERROR(CheckJobName(spec.job));
  CtlHead head{.block = {}, .images = spec.images};
  CKPTD_RETURN_IF_ERROR(PlaceImages(head));
  if (spec.chunk_bytes == 0) return Bad("chunk_bytes", 0);
  const uint64_t chunks = ChunksOf(head.block.slot_bytes, spec.chunk_bytes);
  if (chunks > kMaxChunks) return Bad("chunk_count", chunks);
  if (spec.slot_count > kMaxSlots) return Bad("slot_count", spec.slot_count);
  if (spec.tail_bytes > kMaxTailBytes) return Bad("tail_bytes", spec.tail_bytes);
  FillBlock(spec, chunks, head.block);
  head.block.region_id = region_id;
  head.block.layout = layout;
  head.block.created_unix_ns = created_unix_ns;
  PlaceTables(head.block, spec.tail_bytes);
  CKPTD_RETURN_IF_ERROR(Check(head));
  head.block.tables_crc = Crc32c(0, head.images.data(), head.images.size() * sizeof(ImageExtent));
  head.block.head_crc = HeadCrc(head.block, {});
  return head;
}

}  // namespace

absl::string_view CtlHead::job() const { return block.job; }

uint64_t CtlHead::slot_file_bytes() const { return RoundUp(block.slot_bytes, kSlotAlignment); }

uint64_t CtlHead::tail_offset() const { return RoundUp(RecordBytes(block.chunk_count), kTailAlignment); }

uint64_t ChunkBytesFor(uint64_t slot_bytes) {
  uint64_t bytes = kFirstChunkBytes;
  while (bytes < kMaxChunkBytes && ChunksOf(slot_bytes, bytes) > kWantedChunks) bytes *= 2;
  return bytes;
}

absl::StatusOr<CtlHead> MakeCtlHead(const LayoutSpec& spec, uint64_t region_id, uint32_t layout,
                                    uint64_t created_unix_ns) {
  absl::StatusOr<CtlHead> head = Fill(spec, region_id, layout, created_unix_ns);
  if (head.ok()) return head;
  return Error(ErrorCode::INVALID_ARGUMENT,
               absl::StrCat("job ", spec.job, " rank ", spec.rank, ": layout: ", head.status().message()));
}

absl::StatusOr<CtlHead> ParseCtlHead(std::span<const std::byte> file) {
  CKPTD_ASSIGN_OR_RETURN(Superblock block, CopyBlock(file));
  CtlHead head{.block = block, .images = {}};
  CKPTD_RETURN_IF_ERROR(CheckNumbers(block));
  CKPTD_RETURN_IF_ERROR(CheckTables(block));
  head.images.resize(block.image_count);
  const size_t table_bytes = head.images.size() * sizeof(ImageExtent);
  std::memcpy(head.images.data(), file.data() + block.images_offset, table_bytes);
  if (Crc32c(0, head.images.data(), table_bytes) != block.tables_crc) return Bad("tables_crc", block.tables_crc);
  CKPTD_RETURN_IF_ERROR(Check(head));
  return head;
}

std::vector<std::byte> EncodeCtlHead(const CtlHead& head) {
  std::vector<std::byte> bytes(head.block.records_offset);
  std::memcpy(bytes.data(), &head.block, sizeof(head.block));
  std::memcpy(bytes.data() + head.block.images_offset, head.images.data(), head.images.size() * sizeof(ImageExtent));
  return bytes;
}

}  // namespace ckptd::region
