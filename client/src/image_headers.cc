#include "client/src/image_headers.h"

#include <cstring>

#include "client/core/copy/crc32c.h"
#include "client/core/image/layout.h"
#include "client/core/image/parser.h"
#include "client/core/wire/mapping.h"
#include "client/src/failure.h"

namespace ckptd {
namespace {

// It is the last of all (core/image/layout.h); 0 where there is none.
uint64_t ExtraBytes(const std::vector<ImageInfo>& images) {
  if (images.empty() || images.back().tensors.empty()) return 0;
  const TensorEntry& last = images.back().tensors.back();
  return IsExtraTensor(last.name) ? last.end - last.begin : 0;
}

}  // namespace

int32_t ReadImageHeaders(int slot_fd, uint64_t slot_bytes, uint32_t header_crc, ImageHeaders* out) {
  auto read = [slot_fd](uint64_t offset, char* into, size_t size) { return ReadExactly(slot_fd, offset, into, size); };
  std::vector<ImageInfo> images;
  ImageError wrong = WalkImages(slot_bytes, read, HeaderLimits(), &images);
  if (!wrong.ok()) return Fail(code::CORRUPT, "snapshot: %s", wrong.message.c_str());
  uint32_t crc = 0;
  uint64_t offset = 0;
  for (const ImageInfo& image : images) {
    ImageHeader header;
    header.slot_offset = offset;
    header.bytes.resize(image.header_bytes);
    if (int error = ReadExactly(slot_fd, offset, header.bytes.data(), image.header_bytes)) {
      return Fail(code::CORRUPT, "snapshot: header cannot be read: %s", strerror(error));
    }
    crc = Crc32c(crc, header.bytes.data(), header.bytes.size());
    offset += image.total_bytes;
    out->images.push_back(std::move(header));
  }
  if (crc != header_crc) return Fail(code::CORRUPT, "snapshot: the checksum of its headers is wrong");
  out->extra_bytes = ExtraBytes(images);
  return 0;
}

}  // namespace ckptd
