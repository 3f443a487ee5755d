// Reading the superblock of a ctl file (proto/local/region.h) that an agent handed over.
#include <cinttypes>
#include <cstddef>
#include <cstring>

#include "client/core/copy/crc32c.h"
#include "client/src/attachment.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

bool Fits(uint64_t offset, uint64_t count, uint64_t each, uint64_t file_bytes) {
  return offset % 8 == 0 && offset <= file_bytes && count <= (file_bytes - offset) / each;
}

bool GeometryHolds(const Superblock& block) {
  return block.slot_count >= 1 && block.slot_count <= kMaxSlots && block.image_count >= 1 &&
         block.image_count <= kMaxImages && block.chunk_count >= 1 && block.chunk_count <= kMaxChunks &&
         block.chunk_bytes >= kMinChunkBytes && block.chunk_bytes <= kMaxChunkBytes &&
         (block.chunk_bytes & (block.chunk_bytes - 1)) == 0 && block.slot_bytes >= 1 &&
         (block.slot_bytes - 1) / block.chunk_bytes + 1 == block.chunk_count;
}

bool TablesFit(const Superblock& block) {
  uint64_t states = sizeof(Grant) + block.slot_count * sizeof(SlotState);
  uint64_t record = sizeof(RecordHead) + uint64_t{block.chunk_count} * sizeof(uint32_t);
  return Fits(block.images_offset, block.image_count, sizeof(ImageExtent), block.file_bytes) &&
         Fits(block.states_offset, 1, states, block.file_bytes) && block.record_stride >= record &&
         block.record_stride % 8 == 0 &&
         Fits(block.records_offset, block.slot_count, block.record_stride, block.file_bytes);
}

}  // namespace

int32_t ReadSuperblock(int fd, Superblock* out) {
  uint64_t bytes = 0;
  int error = FileBytes(fd, &bytes);
  if (error == 0) error = ReadExactly(fd, 0, out, sizeof(Superblock));
  if (error != 0) return Fail(code::CORRUPT, "control file: cannot be read: %s", strerror(error));
  if (out->magic != kSuperblockMagic) return Fail(code::CORRUPT, "control file: wrong magic number");
  if (out->major < kRegionMajorMin || out->major > kRegionMajor) {
    return Fail(code::NEWER_VERSION, "control file: version %u, this library reads up to %u", out->major, kRegionMajor);
  }
  Superblock clean = *out;
  clean.head_crc = 0;
  if (Crc32c(0, &clean, sizeof clean) != out->head_crc) return Fail(code::CORRUPT, "control file: checksum is wrong");
  if (out->file_bytes > bytes || !GeometryHolds(*out) || !TablesFit(*out)) {
    return Fail(code::CORRUPT, "control file: its sizes contradict each other (%" PRIu64 " bytes)", bytes);
  }
  return 0;
}

}  // namespace ckptd
