// Reading a safetensors header that nobody vouches for.
//
// The format (one image):
//
//   byte 0      u64 little-endian N
//   byte 8      N bytes of JSON text: one object, first byte `{`, padded at the end with spaces
//   byte 8+N    data: the tensors, back to back from offset 0, no holes, nothing after the last
//
//   {"__metadata__": {"key": "value", ...},
//    "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ...}
//
// The parser is one pass over the text: no DOM, no recursion, memory bounded by HeaderLimits. There is no depth limit
// because the grammar is fixed: a value of any other kind than the format's is an error at its first byte. Where the
// reference reader is laxer than the written format, the format wins: duplicate keys, unknown fields of a tensor,
// white space before `{` and any padding other than spaces are refused.
//
// Threads: everything here is a pure function of its arguments.
#ifndef CKPTD_CLIENT_CORE_IMAGE_PARSER_H_
#define CKPTD_CLIENT_CORE_IMAGE_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/core/image/dtype.h"
#include "client/core/image/image_error.h"
#include "proto/local/region.h"

namespace ckptd {

struct HeaderLimits {
  uint64_t max_header_bytes = uint64_t{64} << 20;  // 8+N, the length field included; of each image
  uint64_t max_tensors = uint64_t{1} << 20;        // of all images of a slot together
  uint64_t max_name_bytes = 1024;                  // of a tensor name or metadata key, decoded
  uint64_t max_dims = 16;
  uint64_t max_metadata = 1024;  // entries of `__metadata__`
  uint64_t max_images = 4096;    // of a slot
};

inline constexpr uint64_t kLengthFieldBytes = 8;

struct TensorEntry {
  std::string name;
  Dtype dtype = Dtype::kU8;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;       // bytes from the start of the data; the image's header_bytes come before
  uint64_t end = 0;         // exclusive
  uint64_t key_offset = 0;  // byte of the image where the name stands, for messages
};

struct ImageInfo {
  uint64_t header_bytes = 0;                                  // 8+N: where the data starts
  uint64_t total_bytes = 0;                                   // header and data
  std::vector<TensorEntry> tensors;                           // by offset
  std::vector<uint32_t> by_name;                              // indices of `tensors`, by name
  std::vector<std::pair<std::string, std::string>> metadata;  // in the order of the text

  // Null when there is none. Valid as long as this object is not changed.
  [[nodiscard]] const TensorEntry* Find(std::string_view name) const;
  [[nodiscard]] const std::string* Metadata(std::string_view key) const;
};

enum class ImageEnd : uint8_t {
  kExact,   // the image ends with the bytes given: a file
  kAtMost,  // other images may follow: a slot
};

// From the first 8 bytes of an image: 8+N, checked against the limits and the size, so that the caller may allocate it.
ImageError HeaderBytes(std::string_view first_bytes, uint64_t available, const HeaderLimits& limits, uint64_t* bytes);

// `header` holds at least the 8+N bytes of a header, in memory that nobody else can write. `available` is the size of
// the file, or what is left of the slot. `info` is complete when ok, else undefined.
ImageError ParseHeader(std::string_view header, uint64_t available, ImageEnd end, const HeaderLimits& limits,
                       ImageInfo* info);

// Copies `size` bytes from `offset` of a slot or file. 0 or an errno.
using ReadAt = std::function<int(uint64_t offset, char* into, size_t size)>;

// The images of a slot: back to back, each a multiple of kImageAlignment, together exactly `bytes`.
ImageError WalkImages(uint64_t bytes, const ReadAt& read, const HeaderLimits& limits, std::vector<ImageInfo>* images);

// The same when only the headers are at hand, back to back without the data (this is how they travel in a memfd).
// The images' total_bytes then say how long the slot is: at most `max_slot_bytes`. Takes no more memory than the text
// warrants, whatever it claims.
ImageError ParseHeaders(std::string_view headers, uint64_t max_slot_bytes, const HeaderLimits& limits,
                        std::vector<ImageInfo>* images);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_CORE_IMAGE_PARSER_H_
