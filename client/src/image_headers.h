// The headers of a snapshot's images, read from a slot that nobody vouches for.
#ifndef CKPTD_CLIENT_SRC_IMAGE_HEADERS_H_
#define CKPTD_CLIENT_SRC_IMAGE_HEADERS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace ckptd {

struct ImageHeader {
  std::string bytes;         // 8+N, as in the slot
  uint64_t slot_offset = 0;  // of the image
};

struct ImageHeaders {
  std::vector<ImageHeader> images;
  uint64_t extra_bytes = 0;  // of the extra tensor
};

// Parses every header strictly and takes it when the checksum over all of them is `header_crc`. 0 or a negative code
// with its sentence.
int32_t ReadImageHeaders(int slot_fd, uint64_t slot_bytes, uint32_t header_crc, ImageHeaders* out);

}  // namespace ckptd

#endif  // CKPTD_CLIENT_SRC_IMAGE_HEADERS_H_
