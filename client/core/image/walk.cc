// The images of a slot, one after the other. A slot is refused as a whole: half of a rank's state is of no use.
#include <cerrno>
#include <cstring>

#include "client/core/image/parser.h"

namespace ckptd {
namespace {

ImageError ReadHeader(const ReadAt& read, uint64_t available, const HeaderLimits& limits, std::string* header) {
  header->assign(kLengthFieldBytes, '\0');
  if (available < kLengthFieldBytes) return {ImageErrorKind::kTruncated, available, "no room for another image"};
  int error = read(0, header->data(), kLengthFieldBytes);
  if (error != 0) return {ImageErrorKind::kRead, 0, std::strerror(error)};
  uint64_t bytes = 0;
  if (ImageError bad = HeaderBytes(*header, available, limits, &bytes); !bad.ok()) return bad;
  // The length is not read again: what was checked is what is parsed.
  header->resize(bytes);
  error = read(kLengthFieldBytes, header->data() + kLengthFieldBytes, bytes - kLengthFieldBytes);
  if (error != 0) return {ImageErrorKind::kRead, kLengthFieldBytes, std::strerror(error)};
  return {};
}

ImageError ReadImageInfo(const ReadAt& read, uint64_t available, const HeaderLimits& limits, ImageInfo* info) {
  std::string header;
  if (ImageError bad = ReadHeader(read, available, limits, &header); !bad.ok()) return bad;
  if (ImageError bad = ParseHeader(header, available, ImageEnd::kAtMost, limits, info); !bad.ok()) return bad;
  if (info->header_bytes % kImageAlignment == 0 && info->total_bytes % kImageAlignment == 0) return {};
  return {ImageErrorKind::kSize, info->total_bytes, "header or image is not a multiple of 4096 bytes"};
}

ImageError InImage(size_t index, ImageError error) {
  error.message = "image " + std::to_string(index) + ": " + error.message;
  return error;
}

// Reads one image and takes its share off what is left.
ImageError NextImage(const ReadAt& read, uint64_t* available, HeaderLimits* limits, std::vector<ImageInfo>* images) {
  size_t index = images->size();
  if (index == limits->max_images) {
    return {ImageErrorKind::kLimit, 0, "more than " + std::to_string(limits->max_images) + " images"};
  }
  ImageError bad = ReadImageInfo(read, *available, *limits, &images->emplace_back());
  if (!bad.ok()) return InImage(index, std::move(bad));
  limits->max_tensors -= images->back().tensors.size();
  *available -= images->back().total_bytes;
  return {};
}

}  // namespace

ImageError WalkImages(uint64_t bytes, const ReadAt& read, const HeaderLimits& limits, std::vector<ImageInfo>* images) {
  images->clear();
  HeaderLimits left = limits;
  uint64_t available = bytes;
  auto read_image = [&](uint64_t offset, char* into, size_t size) {
    return read(bytes - available + offset, into, size);
  };
  do {
    if (ImageError bad = NextImage(read_image, &available, &left, images); !bad.ok()) return bad;
  } while (available > 0);
  return {};
}

ImageError ParseHeaders(std::string_view headers, uint64_t max_slot_bytes, const HeaderLimits& limits,
                        std::vector<ImageInfo>* images) {
  images->clear();
  HeaderLimits left = limits;
  uint64_t available = max_slot_bytes;
  auto read_image = [&](uint64_t offset, char* into, size_t size) {
    if (offset > headers.size() || size > headers.size() - offset) return EINVAL;
    std::memcpy(into, headers.data() + offset, size);
    return 0;
  };
  do {
    // What a header claims and is not there must not be allocated either.
    uint64_t claimed = 0;
    ImageError there = HeaderBytes(headers, headers.size(), left, &claimed);
    if (!there.ok()) return InImage(images->size(), std::move(there));
    if (ImageError bad = NextImage(read_image, &available, &left, images); !bad.ok()) return bad;
    headers.remove_prefix(images->back().header_bytes);
  } while (!headers.empty());
  return {};
}

}  // namespace ckptd
